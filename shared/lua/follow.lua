-- follow: notes that somebody follows a job's text, and tells the worker that runs it, which then writes it at once.
-- KEYS rq_job bell
-- ARGV
--   id text · the job
-- ANSWERS noted ended
--   noted: the job's worker learns of it, or its next one · ended: the job has ended, or is unknown
-- KEEPS 8
-- USES oom_write

local job = read_fields(k_rq_job .. id, { 'penstock_state', 'penstock_worker', 'penstock_followed' })
if job.penstock_state ~= 'queued' and job.penstock_state ~= 'running' then
  return { 'ended' }
end
if job.penstock_followed ~= '1' then
  redis.call('HSET', k_rq_job .. id, 'penstock_followed', 1)
  if job.penstock_state == 'running' and job.penstock_worker then
    -- No job's id begins with this sign, so that workers of earlier versions take it for a job that they do not have.
    redis.call('LPUSH', k_bell .. job.penstock_worker, '~' .. id)
    redis.call('LTRIM', k_bell .. job.penstock_worker, 0, 1023)
    redis.call('EXPIRE', k_bell .. job.penstock_worker, 60)
  end
end
return { 'noted' }
