-- touch: reads one job, and records the read as a poll, so that the job is not canceled as abandoned.
-- KEYS config order result polls rq_job
-- ARGV
--   id text · the job
--   tenant text · the tenant that must own the job, '' for an operator
--   quiet int · 1 to read the job without recording a poll
-- ANSWERS job gone
--   job: now in ms; the job's position in its queue, from 1, or 0 if it is not queued; number of tokens of the jobs
--   before it in the queue, or -1 if unknown; result as JSON, or ''; a list of the fields and values of the job's hash
-- KEEPS 1
-- USES clock job_record

local job = job_record.read_job(id)
if not job or (tenant ~= '' and job.tenant ~= tenant) then
  return { 'gone' }
end
if quiet == 0 and job.poll_grace_ms > 0 then
  -- A store that refuses writes still answers reads, so a failure of these writes is ignored. The poll is then not
  -- recorded. The HDEL comes first for the reason that lib/base/oom_write.lua gives.
  redis.pcall('HDEL', k_config, '')
  redis.pcall('ZADD', k_polls, 'XX', now_ms + job.poll_grace_ms, id)
end
local rank = redis.call('ZRANK', k_order .. job.queue, id)
local result = redis.pcall('GET', k_result .. id)
return { 'job', now_ms, rank and rank + 1 or 0, job_record.tokens_before(job.queue, rank),
  type(result) == 'string' and result or '', redis.call('HGETALL', k_rq_job .. id) }
