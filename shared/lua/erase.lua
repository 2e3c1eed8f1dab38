-- erase: removes an ended job's text.
-- KEYS result events
-- ARGV
--   id text · the job
--   tenant text · whose job it must be, '' for an operator
-- ANSWERS erased gone
--   erased: 1 when there was a text
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
