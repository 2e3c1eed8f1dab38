-- snapshot: returns one consistent view of the whole system; writes nothing.
-- KEYS config inflight deadlines leases tenants tenant stats workers worker models order lists rq_job books
-- ARGV
--   limit int · the largest number of tenants to return, at most 64; those with the latest admissions come first
-- ANSWERS snapshot
--   snapshot: now in ms; numbers of inflight, queued and running jobs; config; stats; for each tenant its name, the age
--   of its oldest queued job in ms (-1 for none) and its fields; for each worker its name and fields; models; for each
--   model of a live worker its name and its pool's tier (an empty list if PENSTOCK_DEGRADATION is off)
-- KEEPS 1
-- USES clock tier

-- At most this many queued jobs of a tenant are examined to find the oldest. If the tenant has more, only the jobs at
-- the front of its queues are examined.
local MAX_EXAMINED = 16

-- Returns the age in ms of a tenant's oldest queued job, or -1 if it has none.
local function oldest_ms(tenant)
  local oldest_ms_seen, examined = now_ms + 1, 0
  for _, slug in ipairs(redis.call('SMEMBERS', k_lists .. tenant)) do
    if examined == MAX_EXAMINED then
      break
    end
    for _, id in ipairs(redis.call('ZRANGE', k_order .. tenant .. '.' .. slug, 0, MAX_EXAMINED - examined - 1)) do
      local admitted_ms = redis.pcall('HGET', k_rq_job .. id, 'penstock_admitted_ms')
      oldest_ms_seen = math.min(oldest_ms_seen,
        type(admitted_ms) == 'string' and tonumber(admitted_ms) or oldest_ms_seen)
      examined = examined + 1
    end
  end
  return now_ms - oldest_ms_seen
end

local tenants = {}
for _, name in ipairs(redis.call('ZREVRANGEBYSCORE', k_tenants, '+inf', '-inf', 'LIMIT', 0,
  math.max(0, math.min(limit, 64)))) do
  tenants[#tenants + 1] = { name, oldest_ms(name), redis.call('HGETALL', k_tenant .. name) }
end
local workers = {}
for _, name in ipairs(redis.call('ZREVRANGE', k_workers, 0, 63)) do
  workers[#workers + 1] = { name, redis.call('HGETALL', k_worker .. name) }
end
local tiers, seen = {}, {}
if redis.call('HGET', k_config, 'degradation') == 'on' then
  for _, name in ipairs(redis.call('ZREVRANGEBYSCORE', k_workers, '+inf', now_ms - LIVE_MS, 'LIMIT', 0, 64)) do
    local slug, model = unpack(redis.call('HMGET', k_worker .. name, 'slug', 'model'))
    if slug and not seen[slug] then
      seen[slug] = true
      tiers[#tiers + 1] = model or slug
      tiers[#tiers + 1] = tier_in_force(unpack(redis.call('HMGET', k_books .. slug, 'tier', 'tier_look_ms')))
    end
  end
end
return { 'snapshot', now_ms, redis.call('ZCARD', k_inflight), redis.call('ZCARD', k_deadlines),
  redis.call('ZCARD', k_leases), redis.call('HGETALL', k_config), redis.call('HGETALL', k_stats), tenants, workers,
  redis.call('ZRANGEBYSCORE', k_models, now_ms - 3600000, '+inf', 'LIMIT', 0, 64), tiers }
