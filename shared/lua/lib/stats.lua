-- stats: counters and histograms in one hash; field `<what>` or `<what>|<tenant label>|…`.
-- KEYS stats labels
-- Each arrow is counted once, by the script that moves it. At most 50 tenants get a label of their own,
-- the first seen; the rest is `other`, so that the hash stays bounded whatever tenants are called.
local MAX_LABELS = 50
-- Upper ends of the histograms' buckets in ms; shared/metrics.py reads the same list.
local BUCKETS_MS = { 5, 10, 25, 50, 100, 250, 500, 1000, 2500, 5000, 10000, 20000, 40000, 80000, 160000, 320000, 640000 }

local function count(field, by)
  redis.call('HINCRBY', k_stats, field, by or 1)
end

local labels = {}
local function label_of(tenant)
  if not labels[tenant] then
    labels[tenant] = 'other'
    if redis.call('SISMEMBER', k_labels, tenant) == 1 then
      labels[tenant] = tenant
    elseif redis.call('SCARD', k_labels) < MAX_LABELS then
      redis.call('SADD', k_labels, tenant)
      labels[tenant] = tenant
    end
  end
  return labels[tenant]
end

-- Fields h|<what>|<upper end or inf> hold counts (not cumulative) and h|<what>|sum the sum in ms.
local function observe(what, ms)
  local upper = 'inf'
  for i = 1, #BUCKETS_MS do
    if ms <= BUCKETS_MS[i] then
      upper = BUCKETS_MS[i]
      break
    end
  end
  count('h|' .. what .. '|' .. upper)
  count('h|' .. what .. '|sum', math.max(0, math.floor(ms)))
end
