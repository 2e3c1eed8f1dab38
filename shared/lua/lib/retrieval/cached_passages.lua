-- cached_passages: reads the entries of a tenant's cache of passages, and removes old ones to make room.
-- KEYS passages passage_ages passage_bytes
-- USES clock file_bytes
-- The hash of a tenant has an entry for each query, by its digest: `<kept ms> <expires ms> <period> <text>`. Its field
-- `bytes` is the sum of their bytes, and `periods` has the same bytes by the period, named by its end in s, in which
-- they expire: `<period> <bytes> …`. The hash of all tenants counts them by the period too.

-- The bytes of an entry beside its text: its digest in both keys, and their tables.
local ENTRY_BYTES = 250
local BYTES_FIELD = 'bytes'
local PERIODS_FIELD = 'periods'
-- One call removes at most this many entries.
local MAX_REMOVED = 64
-- The time for which entries are kept has about this many periods.
local PERIODS = 8

-- Returns an entry, or nil without one or if another program has spoiled it.
local function read_entry(stored)
  local kept_ms, expires_ms, period_s, content = string.match(stored or '', '^(%d+) (%d+) (%d+) (.*)$')
  return kept_ms and { kept_ms = number(kept_ms, 0), expires_ms = number(expires_ms, 0),
    period_s = number(period_s, 0), content = content, bytes = ENTRY_BYTES + #stored } or nil
end

-- Returns a new entry as it is stored, the end of its period, and its bytes.
local function new_entry(content, ttl_s)
  local length_s = math.max(1, math.ceil(ttl_s / PERIODS))
  local period_s = math.ceil((now_ms / 1000 + ttl_s) / length_s) * length_s
  local stored = string.format('%.0f %.0f %.0f ', now_ms, now_ms + 1000 * ttl_s, period_s) .. content
  return { stored = stored, period_s = period_s, bytes = ENTRY_BYTES + #stored }
end

-- Returns the bytes of a tenant's entries by period; a spoiled field has none.
local function read_periods(tenant)
  local stored, found = redis.pcall('HGET', k_passages .. tenant, PERIODS_FIELD), {}
  for end_s, bytes in string.gmatch(type(stored) == 'string' and stored or '', '(%d+) (%d+)') do
    found[number(end_s, 0)] = number(bytes, 0, 0)
  end
  return found
end

-- Adds bytes, which may be negative, to a period of the tenant and of all tenants.
local function count_passages(tenant, period_s, bytes)
  local found, told = read_periods(tenant), {}
  found[period_s] = (found[period_s] or 0) + bytes
  for end_s, sum in pairs(found) do
    if sum > 0 and end_s * 1000 > now_ms then
      told[#told + 1] = whole(end_s) .. ' ' .. whole(sum)
    end
  end
  if #told > 0 then
    redis.call('HSET', k_passages .. tenant, PERIODS_FIELD, table.concat(told, ' '))
  else
    redis.call('HDEL', k_passages .. tenant, PERIODS_FIELD)
  end
  file_bytes.add_to_period(k_passage_bytes, period_s, bytes)
end

-- Takes the bytes of a tenant's hash, which has been deleted, from those of all tenants.
local function uncount_passages(periods)
  for end_s, bytes in pairs(periods) do
    if end_s * 1000 > now_ms then
      file_bytes.add_to_period(k_passage_bytes, end_s, -bytes)
    end
  end
end

-- Removes an entry from the tenant's hash, and returns its bytes.
local function remove_entry(tenant, digest)
  local entry = read_entry(redis.call('HGET', k_passages .. tenant, digest))
  redis.call('HDEL', k_passages .. tenant, digest)
  if entry and entry.period_s * 1000 > now_ms then
    count_passages(tenant, entry.period_s, -entry.bytes)
  end
  return entry and entry.bytes or 0
end

-- Removes the entry that a new one replaces, the oldest entries until `bytes` more fit into `most`, and expired ones.
-- Returns the bytes of those that are left. The new one is in the set of ages already.
local function make_room(tenant, digest, bytes, most, ttl_s)
  local ages = k_passage_ages .. tenant
  local replaced = remove_entry(tenant, digest)
  local taken = math.max(0, number(redis.call('HGET', k_passages .. tenant, BYTES_FIELD), 0, 0) - replaced)
  for _ = 1, MAX_REMOVED do
    local oldest = redis.call('ZRANGE', ages, 0, 0, 'WITHSCORES')
    if oldest[1] == digest then
      return 0
    elseif taken + bytes <= most and number(oldest[2], 0) + 1000 * ttl_s > now_ms then
      break
    end
    redis.call('ZREM', ages, oldest[1])
    taken = math.max(0, taken - remove_entry(tenant, oldest[1]))
  end
  return taken
end
