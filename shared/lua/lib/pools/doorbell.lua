-- doorbell: wakes a worker of a pool for a new job: an idle worker or, failing that, one that may pause another job.
-- KEYS wake bell books pool worker
-- USES clock slots_in_use pausing prefixes
-- If this many rings have not been read, no worker is idle, and another ring would have no effect.
local MAX_RINGS = 64
-- The most workers without a free slot that one job looks at.
local MAX_LOOKED_AT = 64
-- The most workers that one job wakes although they claim by themselves within a quantum. Each claim reads all jobs of
-- its worker, so waking more workers would cost more than it gains.
local MAX_WOKEN = 3

-- Returns whether a full worker has to be woken for a new job, and whether it will claim again even if it is not
-- (lib/fairness/worker_report.lua). One that holds as many paused jobs as it may could do nothing for the job.
local function needs_ring(name, woken)
  local fields = read_fields(k_worker .. name, { 'can_pause', 'asks_by_ms', 'crowded' })
  local asks_itself = number(fields.asks_by_ms, 0, 0, now_ms + LIVE_MS) > now_ms
  return pausing.may_pause(fields.can_pause) and (not asks_itself or fields.crowded ~= '1' and woken < MAX_WOKEN),
    asks_itself
end

-- Wakes live workers that can pause jobs by their own doorbells if all slots of the pool are taken, some of them by
-- other tenants' jobs: one of these may have to give its slot to a job of this tenant. So may the tenant's own batch
-- jobs. A `!` is not a job id.
local function wake_full_workers(slug, tenant)
  if not pausing.is_preemptive() then
    return
  end
  local pool = read_fields(k_books .. slug, { 'running', 'paused', 'slots' })
  local computing = number(pool.running, 0, 0) - number(pool.paused, 0, 0)
  if computing < number(pool.slots, 0, 0) or slots_in_use.main_rows_of(slug, 'c', tenant) >= computing then
    return
  end
  local woken, live = 0, { '+inf', now_ms - LIVE_MS, 'LIMIT', 0, MAX_LOOKED_AT }
  for _, name in ipairs(redis.call('ZREVRANGEBYSCORE', k_pool .. slug, unpack(live))) do
    local needed, asks_itself = needs_ring(name, woken)
    if needed and redis.call('LLEN', k_bell .. name) < MAX_RINGS then
      redis.call('LPUSH', k_bell .. name, '!')
      redis.call('EXPIRE', k_bell .. name, 60)
      woken = woken + (asks_itself and 1 or 0)
    end
  end
end

-- Wakes another worker for the jobs of a pool that a worker leaves when its slots are full: the rings for some of them
-- may have reached this worker alone.
local function pass_on(slug)
  if number(redis.call('HGET', k_books .. slug, 'waiting'), 0) > 0 and redis.call('LLEN', k_wake .. slug) == 0 then
    redis.call('LPUSH', k_wake .. slug, '1')
    redis.call('EXPIRE', k_wake .. slug, 60)
  end
end

-- Rings for a job. Its `prefix` has the digests of its prompt's beginnings, '' for none: an idle worker that has
-- computed one of them is woken rather than any other. A `=` is not a job id.
local function ring(slug, tenant, prefix)
  local holder = prefix ~= '' and prefixes.find_holder(slug, prefix) or nil
  if holder then
    redis.call('LPUSH', k_bell .. holder, '=')
    redis.call('EXPIRE', k_bell .. holder, 60)
  elseif redis.call('LLEN', k_wake .. slug) < MAX_RINGS then
    redis.call('LPUSH', k_wake .. slug, '1')
    redis.call('EXPIRE', k_wake .. slug, 60)
  end
  wake_full_workers(slug, tenant)
end
