-- deferral: lets a refused job wait by itself, and ends a job that the server behind its worker keeps refusing.
-- KEYS rq_job
-- KEEPS 7
-- USES clock priority

-- After this many refusals, a job waits behind the other jobs of its tenant, and twice as long after each further one;
-- and after this many it fails.
local MOVED_BEHIND, MAX_REFUSALS = 3, 30
-- The longest time that a job waits after a refusal. The hint of a server may be an hour.
local LONGEST_DEFERRAL_MS = 60000

-- Lets a job that is about to go back to its queue wait for `wait_ms`. If `refusal` is not '', the server has refused
-- the job, and `refusal` is the job's result (JSON) if the server keeps refusing it. Returns whether the job has been
-- refused too often.
local function defer(job, wait_ms, refusal)
  local key = k_rq_job .. job.id
  if refusal ~= '' then
    job.refusals = job.refusals + 1
    wait_ms = wait_ms * 2 ^ math.max(0, job.refusals - MOVED_BEHIND)
    redis.call('HSET', key, 'penstock_refusals', job.refusals, 'penstock_refusal', refusal)
    if job.refusals == MOVED_BEHIND then
      job.latest_us = job.latest_us + priority.BEHIND_US
      redis.call('HSET', key, 'penstock_latest_us', whole(job.latest_us))
    end
  end
  job.wait_until_ms = now_ms + math.min(wait_ms, LONGEST_DEFERRAL_MS)
  if wait_ms > 0 then
    redis.call('HSET', key, 'penstock_wait_until_ms', whole(job.wait_until_ms))
  end
  return job.refusals >= MAX_REFUSALS
end

-- A job that is claimed waits no longer, and its last refusal does not say any more why it ends.
local function end_deferral(job)
  if job.wait_until_ms > 0 then
    redis.call('HDEL', k_rq_job .. job.id, 'penstock_wait_until_ms', 'penstock_refusal')
    job.wait_until_ms = 0
  end
end

-- Returns how a job ends that was refused: failed, with the reason of the server.
local function refused_ending(refusal)
  return { outcome = 'failed', code = 'upstream_busy', stage = 'queue', finish_reason = '', result = refusal }
end

-- Returns the result of a job that waits after a refusal, if it is not accepted in time; or nil.
local function refusal_of(job)
  return job.wait_until_ms > 0 and redis.call('HGET', k_rq_job .. job.id, 'penstock_refusal') or nil
end

-- Returns how a queued job ends whose time is over, or is too short (`code`).
local function late_ending(job, code)
  local refusal = refusal_of(job)
  return refusal and refused_ending(refusal)
    or { outcome = 'expired', code = code, stage = 'queue', finish_reason = '' }
end
