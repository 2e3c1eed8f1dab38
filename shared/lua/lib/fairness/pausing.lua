-- pausing: says whether running jobs are paused in favor of other tenants, and which workers can pause jobs.
-- KEYS worker books
-- USES clock settings
-- With preemption, a running job is charged its cost so far. Without it, and on a worker that cannot pause jobs, the
-- job is charged its estimated cost when it is claimed: its tenant cannot lose the slot before the job ends.
local function is_preemptive()
  local preemption = settings.read_setting('preemption')
  return preemption == 'on' or preemption == 'auto' and settings.read_setting('fairness') ~= 'turns'
end

-- Whether the jobs of a worker may be paused, from the field `can_pause` of its record. A worker that reports no such
-- field is of a version that pauses none.
local function may_pause(can_pause)
  return can_pause == '1' and is_preemptive()
end

local function worker_may_pause(worker)
  return may_pause(redis.call('HGET', k_worker .. worker, 'can_pause'))
end

-- Whether jobs of a pool may be paused: a worker that can do so sent a heartbeat lately.
local function pool_may_pause(slug)
  return is_preemptive() and now_ms - number(redis.call('HGET', k_books .. slug, 'can_pause_ms'), 0, 0,
    now_ms) <= LIVE_MS
end
