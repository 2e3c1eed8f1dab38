-- stats: counters and histograms in one hash, in fields `<name>` and `<name>|<tenant label>|…`.
-- KEYS stats labels exemplars
-- USES clock
-- Each state change is counted once, by the script that makes it. The first 50 tenants get labels of their own; all
-- others share the label `other`, so that the size of the hash is bounded.
local MAX_LABELS = 50
-- Upper bounds of the histograms' buckets in ms. shared/metrics/spec.py has the same list.
local BUCKETS_MS = { 5, 10, 25, 50, 100, 250, 500, 1000, 2500, 5000, 10000, 20000, 40000, 80000, 160000, 320000,
  640000 }

-- The counts since `hold_counts`, which `write_counts` writes: numbers to add, by field, and the fields and values of
-- exemplars.
local unwritten = { counts = false, exemplars = false }

local function hold_counts()
  unwritten.counts, unwritten.exemplars = {}, {}
end

local function count(field, by)
  if unwritten.counts then
    unwritten.counts[field] = (unwritten.counts[field] or 0) + (by or 1)
  else
    redis.call('HINCRBY', k_stats, field, by or 1)
  end
end

-- Writes the held counts. One that another program has spoiled begins anew.
local function write_counts()
  local fields, written = {}, {}
  for field in pairs(unwritten.counts) do
    fields[#fields + 1] = field
  end
  if fields[1] then
    local stored = redis.call('HMGET', k_stats, unpack(fields))
    for i = 1, #fields do
      local value = number(stored[i])
      if stored[i] and not (value and value % 1 == 0) then
        note_mend('number', k_stats .. ' ' .. fields[i])
        value = 0
      end
      written[2 * i - 1], written[2 * i] = fields[i], whole((value or 0) + unwritten.counts[fields[i]])
    end
    redis.call('HSET', k_stats, unpack(written))
  end
  if unwritten.exemplars[1] then
    redis.call('HSET', k_exemplars, unpack(unwritten.exemplars))
  end
  unwritten.counts, unwritten.exemplars = false, false
end

-- Returns the tenant's metric label. A new tenant gets a label of its own if fewer than MAX_LABELS are in use.
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

-- Adds a value to a histogram. Each field `h|<name>|<upper bound or inf>` holds the count of one bucket (the counts are
-- not cumulative). The field `h|<name>|sum_us` holds the sum of all values in µs, because a fast model needs less than
-- 1 ms for a token. The metrics also add the field `h|<name>|sum`, in which some stores hold an older sum in ms.
-- For the time of a job, `id` makes it the exemplar of its bucket: the newest job in it, in the hash of exemplars.
local function observe(what, ms, id)
  local upper = 'inf'
  for i = 1, #BUCKETS_MS do
    if ms <= BUCKETS_MS[i] then
      upper = BUCKETS_MS[i]
      break
    end
  end
  count('h|' .. what .. '|' .. upper)
  local us = digits(math.max(0, ms * 1000))
  if id and unwritten.exemplars then
    unwritten.exemplars[#unwritten.exemplars + 1] = what .. '|' .. upper
    unwritten.exemplars[#unwritten.exemplars + 1] = id .. ' ' .. us .. ' ' .. digits(now_ms)
  elseif id then
    redis.call('HSET', k_exemplars, what .. '|' .. upper, id .. ' ' .. us .. ' ' .. digits(now_ms))
  end
  count('h|' .. what .. '|sum_us', us)
end
