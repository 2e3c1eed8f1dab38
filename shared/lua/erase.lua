-- erase: deletes the text of an ended job; does not change inflight jobs.
-- KEYS result events
-- ARGV
--   id text · the job
--   tenant text · the tenant that must own the job, '' for an operator
-- ANSWERS erased gone
--   erased: 1 if a result was deleted; 0 if there was no result or if the job is inflight
-- KEEPS 4
-- USES job

local job = read_job(id)
if not job or (tenant ~= '' and job.tenant ~= tenant) then
  return { 'gone' }
end
if job.state == 'queued' or job.state == 'running' then
  return { 'erased', 0 }
end
redis.call('DEL', k_events .. id)
return { 'erased', redis.call('DEL', k_result .. id) }
