-- erase: deletes the text of an ended job, and its request if it was kept; does not change inflight jobs.
-- KEYS result events payload webhook rq_job
-- ARGV
--   id text · the job
--   tenant text · the tenant that must own the job, '' for an operator
--   form text · what replaces the form of the ended job, '' to leave it as it is
-- ANSWERS erased gone
--   erased: 1 if a result was deleted; 0 if there was no result or if the job is inflight
-- KEEPS 4
-- USES clock job_record tenant_bytes

local function length_of_text(key)
  local length = redis.pcall('STRLEN', key)
  return type(length) == 'number' and length or 0
end

local job = job_record.read_job(id)
if not job or (tenant ~= '' and job.tenant ~= tenant) then
  return { 'gone' }
end
if job.state == 'queued' or job.state == 'running' then
  return { 'erased', 0 }
end
redis.call('DEL', k_events .. id)
redis.call('HDEL', k_rq_job .. id, 'penstock_prefix')
-- A webhook that is not told yet has a copy.
redis.call('HDEL', k_webhook .. id, 'result')
if form ~= '' then
  redis.call('HSET', k_rq_job .. id, 'penstock_form', form)
end
local bytes = length_of_text(k_result .. id) + length_of_text(k_payload .. id)
local erased = redis.call('DEL', k_result .. id)
if erased + redis.call('DEL', k_payload .. id) > 0 then
  tenant_bytes.keep_erased(job.tenant, id, bytes)
end
return { 'erased', erased }
