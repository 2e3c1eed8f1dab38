-- cancel: ends a waiting job at once; flags a running one and rings its holder's bell.
-- KEYS rq_job
-- ARGV
--   id text · the job
--   tenant text · whose job it must be, '' for an operator
--   code text · canceled, abandoned or unheard
--   offer text · end only what this offering made and nobody else has heard of, '' for whatever it is
-- ANSWERS canceled requested ended gone
-- KEEPS 1 2 4
-- USES clock afford job waiting rq stats finish drop

local job = read_job(id)
if not job or (tenant ~= '' and job.tenant ~= tenant) then
  return { 'gone' }
end
if offer ~= '' and redis.call('HGET', k_rq_job .. id, 'penstock_offer') ~= offer then
  return { 'gone' }
end
if job.state == 'queued' then
  drop(job, code, now_ms)
  return { 'canceled' }
end
if job.state == 'running' then
  drop(job, code, now_ms)
  return { 'requested' }
end
return { 'ended' }
