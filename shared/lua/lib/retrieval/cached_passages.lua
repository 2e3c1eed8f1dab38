-- cached_passages: reads the entries of a tenant's cache of passages, and removes old ones to make room.
-- KEYS passages passage_ages passage_bytes
-- USES clock kept_periods
-- The hash of a tenant has an entry for each query, by its digest: `<kept ms> <expires ms> <period> <text>`. Its field
-- `bytes` is the sum of their bytes, and `periods` has the same bytes by the period, named by its end in s, in which
-- they expire: `<period> <bytes> …`. The hash of all tenants counts them by the period too.

-- The bytes of an entry beside its text: its digest in both keys, and their tables.
local ENTRY_BYTES = 250
local BYTES_FIELD = 'bytes'
-- One call removes at most this many entries.
local MAX_REMOVED = 64

-- Returns an entry, or nil without one or if another program has spoiled it.
local function read_entry(stored)
  local kept_ms, expires_ms, period_s, content = string.match(stored or '', '^(%d+) (%d+) (%d+) (.*)$')
  return kept_ms and { kept_ms = number(kept_ms, 0), expires_ms = number(expires_ms, 0),
    period_s = number(period_s, 0), content = content, bytes = ENTRY_BYTES + #stored } or nil
end

-- Returns a new entry as it is stored, the end of its period, and its bytes.
local function new_entry(content, ttl_s)
  local period_s = kept_periods.end_of_period_s(ttl_s)
  local stored = string.format('%.0f %.0f %.0f ', now_ms, now_ms + 1000 * ttl_s, period_s) .. content
  return { stored = stored, period_s = period_s, bytes = ENTRY_BYTES + #stored }
end

-- Removes an entry from the tenant's hash, and returns its bytes.
local function remove_entry(tenant, digest)
  local entry = read_entry(redis.call('HGET', k_passages .. tenant, digest))
  redis.call('HDEL', k_passages .. tenant, digest)
  if entry and entry.period_s * 1000 > now_ms then
    kept_periods.count_kept(k_passages .. tenant, k_passage_bytes, entry.period_s, -entry.bytes)
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
