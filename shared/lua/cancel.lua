-- cancel: ends a queued job at once; marks a running job as canceled and notifies its worker.
-- KEYS rq_job
-- ARGV
--   id text · the job
--   tenant text · the tenant that must own the job, '' for an operator
--   code text · the reason: canceled, abandoned or unheard
--   offer text · cancel only if no client can have the job's id after this offer has failed; '' to cancel in any case
-- ANSWERS canceled requested ended gone
-- KEEPS 1 2 4
-- USES clock oom_write mark job_record drop offers

local job = job_record.read_job(id)
if not job or (tenant ~= '' and job.tenant ~= tenant) then
  return { 'gone' }
end
if offer ~= '' then
  local others = offers.without_offer(redis.call('HGET', k_rq_job .. id, 'penstock_offer'), offer)
  if not others then
    return { 'gone' }
  end
  if others ~= '' then
    -- A client may have the job's id from another offer. If that one fails too, its cancel ends the job.
    redis.call('HSET', k_rq_job .. id, 'penstock_offer', others)
    return { 'gone' }
  end
end
if job.state == 'queued' then
  drop.cancel_job(job, code, now_ms)
  return { 'canceled' }
end
if job.state == 'running' then
  drop.cancel_job(job, code, now_ms)
  return { 'requested' }
end
return { 'ended' }
