-- tenant_work: computes how much work a tenant may have queued for a pool if PENSTOCK_MAX_QUEUE_TOKENS is `auto`.
-- KEYS
-- The bound is on expected work, in mwt, and not on requested tokens: most clients ask for a much larger `max_tokens`
-- than their answers are long, and a bound on requested tokens would refuse work that the pool can do in time.

-- While the pool's rates are unknown, a tenant may have at least this much work queued: 65,536 weighted tokens.
local LEAST_WORK_MWT = 65536000

-- Returns the largest work in mwt that the tenant (or its group) may have queued for the pool, or nil if a later check
-- bounds it.
-- `active` is the number of tenants with jobs queued for the pool.
local function max_work_of(request, active)
  if not request.has_rates then
    -- The bound on the number of queued jobs, if they cost as much as the mean job.
    return math.max(LEAST_WORK_MWT, (request.group or request).max_waiting * request.mean_mwt)
  end
  if request.full_admission then
    -- check_share allows the tenant its part of the free backlog, which is less than either of the two values below.
    return nil
  end
  return math.max(request.max_wait_ms * request.mu,
    2 * active * request.mean_mwt * request.weight_milli / request.total_weight_milli)
end
