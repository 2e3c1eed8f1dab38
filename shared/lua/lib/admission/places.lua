-- places: divides the bound on inflight jobs among the live pools; writes nothing.
-- KEYS models books
-- USES clock slug
-- Each live pool is kept its part of the bound in proportion to its slots, but at least one place, which jobs of other
-- pools cannot take. docs/adr/0041-bounds-from-what-is-measured.md gives the reasons.

-- With more live pools than this, no places are kept, and only the bound on all jobs holds: an admission looks at each
-- pool.
local MAX_POOLS = 64

local function kept_places(seen, slots)
  return math.max(1, math.floor(seen.max_inflight * slots / seen.live_slots))
end

-- Returns the other live pools: how many they are; how many of the places that are kept for them are free; and how many
-- of them have no inflight job. Returns nil if there are more than MAX_POOLS.
local function look_at_other_pools(asked, seen)
  local pools, free, empty, is_counted = 0, 0, 0, { [asked.slug] = true }
  local models = redis.call('ZREVRANGEBYSCORE', k_models, '+inf', now_ms - LIVE_MS, 'LIMIT', 0, MAX_POOLS + 1)
  if #models > MAX_POOLS then
    return nil
  end
  for i = 1, #models do
    local slug = slug.slug_of(models[i])
    local fields = is_counted[slug] and {} or read_fields(k_books .. slug, { 'slots', 'waiting', 'running' })
    local slots, jobs = number(fields.slots, 0, 0), number(fields.waiting, 0, 0) + number(fields.running, 0, 0)
    -- The job that the new one replaces gives its place back.
    jobs = jobs - (seen.replaced_slug == slug and 1 or 0)
    if slots > 0 then
      pools, free = pools + 1, free + math.max(0, kept_places(seen, slots) - jobs)
      empty = empty + (jobs == 0 and 1 or 0)
    end
    is_counted[slug] = true
  end
  return pools, free, empty
end

-- Returns how many jobs the request's pool may have inflight now, given the jobs of the other pools.
local function places_in_pool(asked, seen)
  local left = seen.max_inflight - (seen.inflight - seen.pool_inflight)
  if seen.slots >= seen.live_slots then
    return left
  end
  local pools, free, empty = look_at_other_pools(asked, seen)
  -- If there are fewer places than pools, the parts are not whole places.
  if not pools or seen.max_inflight <= pools then
    return left
  end
  -- The parts may add up to more than the bound, because each is at least one place. The first place of each pool then
  -- comes before the other places of a large one.
  local own = math.min(kept_places(seen, seen.slots), left - empty)
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
