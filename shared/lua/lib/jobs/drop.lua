-- drop: cancels a job: ends a queued job; marks a running job as canceled and notifies its worker.
-- KEYS rq_job bell
-- KEEPS 1 2 4
-- USES finish

local function cancel_job(job, code, now_ms)
  if job.state == 'queued' then
    finish.end_job(job, { outcome = 'canceled', code = code, stage = 'queue', finish_reason = 'canceled' }, now_ms)
  elseif job.state == 'running' and job.cancel == '' then
    redis.call('HSET', k_rq_job .. job.id, 'penstock_cancel', code)
    redis.call('LPUSH', k_bell .. job.worker, job.id)
    redis.call('LTRIM', k_bell .. job.worker, 0, 1023)
    redis.call('EXPIRE', k_bell .. job.worker, 60)
  end
end
