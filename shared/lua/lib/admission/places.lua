-- places: divides the bound on inflight jobs among the live pools; writes nothing.
-- KEYS models books
-- USES clock slug loadable
-- Each live pool, also that of a loadable model, is kept its part of the bound in proportion to its slots, but at least
-- one place, which jobs of other pools cannot take. docs/adr/0041-bounds-from-what-is-measured.md gives the reasons.

-- With more live pools than this, no places are kept, and only the bound on all jobs holds: an admission looks at each
-- pool.
local MAX_POOLS = 64

-- `sum_slots` are the slots of all pools.
local function kept_places(seen, slots, sum_slots)
  return math.max(1, math.floor(seen.max_inflight * slots / math.max(1, sum_slots)))
end

-- Whether only the request's pool is live.
local function has_all_slots(seen)
  return seen.slots >= seen.live_slots and not seen.has_loadables
end

-- Returns the other live pools, each with its `slots` and its `jobs`; how many of them have no inflight job; and the
-- slots of all pools. Returns nil if there are more than MAX_POOLS.
local function look_at_other_pools(asked, seen)
  local pools, empty, sum_slots, is_counted = {}, 0, seen.slots, { [asked.slug] = true }
  local models = redis.call('ZREVRANGEBYSCORE', k_models, '+inf', now_ms - LIVE_MS, 'LIMIT', 0, MAX_POOLS + 1)
  if #models > MAX_POOLS then
    return nil
  end
  for i = 1, #models do
    local slug = slug.slug_of(models[i])
    local fields = is_counted[slug] and {} or read_fields(k_books .. slug, { 'slots', 'waiting', 'running',
      'claims_from_ms', 'loadable_slots' })
    local slots = loadable.slots_with_loadable(fields)
    local jobs = number(fields.waiting, 0, 0) + number(fields.running, 0, 0)
    -- The job that the new one replaces gives its place back.
    jobs = jobs - (seen.replaced_slug == slug and 1 or 0)
    if slots > 0 then
      pools[#pools + 1] = { slots = slots, jobs = jobs }
      empty, sum_slots = empty + (jobs == 0 and 1 or 0), sum_slots + slots
    end
    is_counted[slug] = true
  end
  return pools, empty, math.max(sum_slots, seen.live_slots)
end

-- Returns how many jobs the request's pool may have inflight now, given the jobs of the other pools.
local function places_in_pool(asked, seen)
  local left = seen.max_inflight - (seen.inflight - seen.pool_inflight)
  if has_all_slots(seen) then
    return left
  end
  local pools, empty, sum_slots = look_at_other_pools(asked, seen)
  -- If there are fewer places than pools, the parts are not whole places.
  if not pools or seen.max_inflight <= #pools then
    return left
  end
  local free = 0
  for i = 1, #pools do
    free = free + math.max(0, kept_places(seen, pools[i].slots, sum_slots) - pools[i].jobs)
  end
  -- The parts may add up to more than the bound, because each is at least one place. The first place of each pool then
  -- comes before the other places of a large one.
  local own = math.min(kept_places(seen, seen.slots, sum_slots), left - empty)
  return math.max(left - free, own, seen.pool_inflight == 0 and math.min(1, left) or 0)
end

-- Whether the tenant may use the part of the pool's places that is kept free, which is `kept` jobs. True if the pool is
-- idle; and, unless the job is a batch job, if the tenant has no jobs queued for it, or if both its queued work and its
-- number of queued jobs are below its share. The number is checked because places count jobs: a tenant with many small
-- jobs could otherwise use up the kept part with little work.
local function is_kept_for(asked, seen, verdict, kept)
  return verdict.idle or not asked.is_batch and (seen.waiting_here == 0
    or seen.tenant_mwt * seen.total_weight_milli < seen.weight_milli * seen.pool_mwt
    and seen.waiting_here * seen.total_weight_milli < seen.weight_milli * kept)
end
