-- priority: orders a tenant's jobs by priority, and keeps batch work (priority -1) apart from all other work.
-- KEYS active batch order
-- USES slots_in_use
-- A *batch* job gives way to the other jobs of all tenants in its pool. Therefore each active set has a second set
-- beside it, the batch set. An owner that wants slots is in exactly one of the two: a tenant is in the batch set if all
-- its queued and paused jobs are batch jobs, and a group if all its tenants that want slots are. So claim needs to look
-- at the batch set only if the active set is empty, and `ZCARD penstock:active:<slug>` tells whether other work waits
-- in the pool.

-- A queue's scores are latest starts in microseconds, minus this number times the priority. Latest starts are less than
-- 2^52 until the year 2112. So all scores are exact integers between -2^52 and 2^53, the priorities do not overlap, and
-- a job with priority 0 has the score that it had before there were priorities.
local PRIORITY_STEP = 2 ^ 52
-- Added to the latest start of a job that waits behind the other jobs of its tenant: more than any deadline is away.
-- The sum is less than 2^52 until the year 2081.
local BEHIND_US = 1e15

-- Returns the priority in a field of a job: 1, 0 or -1. A missing or spoiled field counts as 0.
local PRIORITIES = { ['1'] = 1, ['0'] = 0, ['-1'] = -1 }
local function priority_in(stored)
  return PRIORITIES[stored] or 0
end

local function order_score(priority, latest_us)
  return latest_us - priority * PRIORITY_STEP
end

-- Returns the priority and the latest start that a score in a queue stands for.
local function parts_of_score(score)
  local priority = score < 0 and 1 or score >= PRIORITY_STEP and -1 or 0
  return priority, score + priority * PRIORITY_STEP
end

-- Returns the key of a pool's active set or batch set, or of those of a group in the pool.
local function set_key(slug, group, is_batch)
  return (is_batch and k_batch or k_active) .. slug .. group
end

-- Returns the number of owners with queued jobs in a pool, or in a group in it: those in its active and its batch set.
local function owners_with_jobs(slug, group)
  return redis.call('ZCARD', k_active .. slug .. group) + redis.call('ZCARD', k_batch .. slug .. group)
end

-- Whether any owner wants slots of a pool.
local function is_pool_wanted(slug)
  return redis.call('EXISTS', k_active .. slug, k_batch .. slug) > 0
end

-- Returns the part of some queued work that counts for an offered job: all of it for a batch job, which waits for all
-- of it, and the part without batch work for other jobs.
local function counted_work(is_batch, all, batch)
  return is_batch and all or math.max(0, all - batch)
end

-- Returns whether all queued and paused jobs of an owner in a pool are batch jobs, or nil if it has none there. The
-- head of a queue is a batch job only if all its jobs are.
local function has_only_batch(owner, slug)
  if string.sub(owner, 1, 1) ~= '@' then
    local score = redis.call('ZRANGE', k_order .. owner .. '.' .. slug, 0, 0, 'WITHSCORES')[2]
    if score and parts_of_score(number(score, 0)) >= 0 then
      return false
    end
    local paused, paused_batch = slots_in_use.rows_with_batch(slug, 'p', owner)
    return paused <= paused_batch and ((score or paused_batch > 0) and true or nil)
  elseif redis.call('EXISTS', k_active .. slug .. owner) == 1 then
    return false
  end
  return redis.call('EXISTS', k_batch .. slug .. owner) == 1 or nil
end
