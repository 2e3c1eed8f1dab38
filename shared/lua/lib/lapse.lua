-- lapse: what becomes of a running job that nobody runs any more.
-- KEYS config
-- KEEPS 1 2 3 4
-- USES job finish giveback

-- In this order: unwanted, late, used up, else back to its list. Answers which.
local function lapse(job, counted, now_ms)
  local how = { outcome = 'canceled', code = job.cancel, stage = 'decode', finish_reason = 'canceled', result = '',
    rq_return = '' }
  if job.cancel == '' and job.deadline_ms <= now_ms then
    how.outcome, how.code, how.finish_reason = 'expired', 'deadline_exceeded', 'deadline'
  elseif job.cancel == '' and counted and job.attempts >= tonumber(redis.call('HGET', k_config, 'max_attempts') or 3) then
    how.outcome, how.code, how.stage, how.finish_reason = 'failed', 'poison', '', ''
  elseif job.cancel == '' then
    give_back(job, counted, now_ms)
    return 'requeued'
  end
  finish(job, how, now_ms)
  return how.outcome
end
