-- snapshot: one consistent picture of the whole system; writes nothing.
-- KEYS config inflight deadlines leases tenants tenant stats workers worker models order lists rq_job books
-- ARGV
--   limit int · tenants shown, the most recently seen; at most 64
-- ANSWERS snapshot
--   snapshot: now, inflight, waiting, running, config, stats, tenants as name and fields, workers as name and fields, models,
--   models of live workers and their pools' tiers (none where the system does not degrade)
-- KEEPS 1
-- USES clock tier

-- Waiting jobs of a tenant whose age is asked: all of them at the default bound, else those that are next.
local MAX_LOOKS = 16

local function oldest_ms(tenant)
  local oldest, looks = now_ms + 1, 0
  for _, slug in ipairs(redis.call('SMEMBERS', k_lists .. tenant)) do
    if looks == MAX_LOOKS then
      break
    end
    for _, id in ipairs(redis.call('ZRANGE', k_order .. tenant .. '.' .. slug, 0, MAX_LOOKS - looks - 1)) do
      local held = redis.pcall('HGET', k_rq_job .. id, 'penstock_admitted_ms')
      oldest = math.min(oldest, type(held) == 'string' and tonumber(held) or oldest)
      looks = looks + 1
    end
  end
  return now_ms - oldest
end

local tenants = {}
for _, name in ipairs(redis.call('ZREVRANGEBYSCORE', k_tenants, '+inf', '-inf', 'LIMIT', 0, math.max(0, math.min(limit, 64)))) do
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
