-- recount_workers: recomputes the sums over live workers from the workers' parts, and removes parts that are not valid.
-- KEYS config live counted workers models books
-- ARGV
-- ANSWERS recounted
--   recounted: number of repairs
-- KEEPS 12
-- USES clock oom_write mark repair fleet slug stats live_places

-- This script may examine more than 64 entries, because a sum over a part of the workers is useless. It does nothing if
-- there are more workers than this.
local MAX_COUNTED, MAX_MODELS = 4096, 1024
local function answer()
  if repair.repairs.made > 0 then
    stats.count('reconciled', repair.repairs.made)
  end
  return { 'recounted', repair.repairs.made }
end

for key, kind in pairs({ [k_live] = 'zset', [k_counted] = 'hash' }) do
  local found = redis.call('TYPE', key).ok
  if found ~= kind and found ~= 'none' then
    redis.call('DEL', key)
    repair.note_repairs(1)
  end
end
if redis.call('HLEN', k_counted) > MAX_COUNTED or redis.call('ZCARD', k_live) > MAX_COUNTED then
  return answer()
end

-- The heartbeats that `live` has, without those of workers that have no part, which their next heartbeat counts, and
-- without times in the future, which no script wrote.
local heartbeats, stored_parts = {}, redis.call('HGETALL', k_counted)
local is_counted = {}
for i = 1, #stored_parts, 2 do
  is_counted[stored_parts[i]] = true
end
local live = redis.call('ZRANGE', k_live, 0, -1, 'WITHSCORES')
for i = 1, #live, 2 do
  if is_counted[live[i]] and tonumber(live[i + 1]) <= now_ms + LIVE_MS then
    heartbeats[live[i]] = true
  else
    redis.call('ZREM', k_live, live[i])
    repair.note_repairs(1)
  end
end

local sums, live_slots = {}, 0
local function sums_of(slug)
  sums[slug] = sums[slug] or fleet.no_sums()
  return sums[slug]
end
for i = 1, #stored_parts, 2 do
  local name, part = stored_parts[i], fleet.parse_part(stored_parts[i + 1])
  local heartbeat_ms = number(redis.call('ZSCORE', k_workers, name), 0)
  if part and not heartbeats[name] and heartbeat_ms >= now_ms - LIVE_MS then
    redis.call('ZADD', k_live, math.min(heartbeat_ms, now_ms), name)
    repair.note_repairs(1)
  elseif not part or not heartbeats[name] then
    redis.call('HDEL', k_counted, name)
    redis.call('ZREM', k_live, name)
    repair.note_repairs(1)
    part = nil
  end
  for _, sum in ipairs(part and fleet.SUMS or {}) do
    sums_of(part.slug)[sum] = sums_of(part.slug)[sum] + part[sum]
  end
  live_slots = live_slots + (part and part.slots or 0)
end

-- A pool without live workers may have sums too, if its worker's part was removed by another program.
for _, model in ipairs(redis.call('ZREVRANGEBYSCORE', k_models, '+inf', now_ms - 3600000, 'LIMIT', 0, MAX_MODELS)) do
  sums_of(slug.slug_of(model))
end
for slug, true_sums in pairs(sums) do
  local held = read_fields(k_books .. slug, fleet.SUMS)
  for _, sum in ipairs(fleet.SUMS) do
    if number(held[sum] or '0') ~= true_sums[sum] then
      fleet.write_sums(slug, true_sums)
      repair.note_repairs(1)
      break
    end
  end
end
local live_places = 0
for slug, true_sums in pairs(sums) do
  local places = number(redis.call('HGET', k_books .. slug, 'places'), 0, 0, live_places.MAX_PLACES)
  if true_sums.slots > 0 then
    live_places = live_places + places
  elseif places > 0 then
    redis.call('HSET', k_books .. slug, 'places', 0)
    repair.note_repairs(1)
  end
end
repair.correct_fields(k_config, { live_places = live_places, live_slots = live_slots })
return answer()
