-- lapse: ends or requeues a running job that no worker runs any more.
-- KEYS
-- KEEPS 1 2 3 4
-- USES settings finish giveback deferral

-- Ends or requeues the job and returns its new state. If its cancel was requested, it ends as canceled; otherwise, if
-- it is late, it expires; otherwise, if it was on its last attempt, it fails; otherwise it is requeued. A job that a
-- server has refused fails instead of expiring, and also if `is_refused_too_often`.
local function end_lease(job, counts_as_attempt, now_ms, is_refused_too_often)
  local ending = { outcome = 'canceled', code = job.cancel, stage = 'decode', finish_reason = 'canceled' }
  local refusal = deferral.refusal_of(job)
  if job.cancel == '' and refusal and (is_refused_too_often or job.deadline_ms <= now_ms) then
    ending = deferral.refused_ending(refusal)
  elseif job.cancel == '' and job.deadline_ms <= now_ms then
    ending.outcome, ending.code, ending.finish_reason = 'expired', 'deadline_exceeded', 'deadline'
  elseif job.cancel == '' and counts_as_attempt
    and job.counted_attempts >= settings.read_setting('max_attempts') then
    ending.outcome, ending.code, ending.stage, ending.finish_reason = 'failed', 'poison', '', ''
  elseif job.cancel == '' then
    giveback.give_back(job, counts_as_attempt, now_ms)
    return 'requeued'
  end
  finish.end_job(job, ending, now_ms)
  return ending.outcome
end
