-- erase: deletes the text of an ended job; does not change inflight jobs.
-- KEYS result events webhook
-- ARGV
--   id text · the job
--   tenant text · the tenant that must own the job, '' for an operator
-- ANSWERS erased gone
--   erased: 1 if a result was deleted; 0 if there was no result or if the job is inflight
-- KEEPS 4
-- USES clock job kept

local job = read_job(id)
if not job or (tenant ~= '' and job.tenant ~= tenant) then
  return { 'gone' }
end
if job.state == 'queued' or job.state == 'running' then
  return { 'erased', 0 }
end
redis.call('DEL', k_events .. id)
-- A webhook that is not told yet has a copy.
redis.call('HDEL', k_webhook .. id, 'result')
local length = redis.pcall('STRLEN', k_result .. id)
local erased = redis.call('DEL', k_result .. id)
if erased == 1 and type(length) == 'number' then
  keep_erased(job.tenant, id, length)
end
return { 'erased', erased }
