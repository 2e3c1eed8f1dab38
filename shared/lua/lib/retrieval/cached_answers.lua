-- cached_answers: reads the entries of a tenant's semantic cache, and removes old ones to make room.
-- KEYS answers answer_order answer_vectors answer_bytes
-- USES clock kept_periods
-- Three keys of a tenant have an entry for each kept answer, by its digest: the hash `answers` has `<kept ms> <expires
-- ms> <period> <bytes> <text>`, in the field `bytes` the sum of the entries' bytes, and in `periods` the same bytes by
-- the period, named by its end in s, in which they expire: `<period> <bytes> …`; the hash `answer_vectors` has the
-- scope and the vector of the prompt; the set `answer_order` has the time in microseconds at which it was kept. The
-- hash of all tenants counts the bytes by the period too.

-- The bytes of an entry beside its text and vector: its digest in three keys, and their tables.
local ANSWER_BYTES = 400
local ANSWER_BYTES_FIELD = 'bytes'
-- One call removes at most this many entries.
local MAX_ANSWERS_REMOVED = 32

-- Returns an entry, or nil without one or if another program has spoiled it.
local function read_answer(stored)
  local kept_ms, expires_ms, period_s, size, content =
    string.match(stored or '', '^(%d+) (%d+) (%d+) (%d+) (.*)$')
  return kept_ms and { kept_ms = number(kept_ms, 0), expires_ms = number(expires_ms, 0),
    period_s = number(period_s, 0), bytes = number(size, 0), content = content } or nil
end

-- Returns a new entry as it is stored, the end of its period, and its bytes.
local function new_answer(content, vector, ttl_s)
  local period_s = kept_periods.end_of_period_s(ttl_s)
  local size = ANSWER_BYTES + #content + #vector
  local head = string.format('%.0f %.0f %.0f %.0f ', now_ms, now_ms + 1000 * ttl_s, period_s, size)
  return { stored = head .. content, period_s = period_s, bytes = size }
end

-- Removes an entry from the tenant's hashes, and returns its bytes.
local function remove_answer(tenant, digest)
  local entry = read_answer(redis.call('HGET', k_answers .. tenant, digest))
  redis.call('HDEL', k_answers .. tenant, digest)
  redis.call('HDEL', k_answer_vectors .. tenant, digest)
  if entry and entry.period_s * 1000 > now_ms then
    kept_periods.count_kept(k_answers .. tenant, k_answer_bytes, entry.period_s, -entry.bytes)
  end
  return entry and entry.bytes or 0
end

-- Removes the entry that a new one replaces, the oldest entries until there is room for `bytes` more and for one more
-- entry, and expired ones. Returns the bytes of those that are left. The new one is in the set already.
local function make_answer_room(tenant, digest, bytes, max_bytes, max_entries, ttl_s)
  local order = k_answer_order .. tenant
  local replaced = remove_answer(tenant, digest)
  local taken = math.max(0, number(redis.call('HGET', k_answers .. tenant, ANSWER_BYTES_FIELD), 0, 0) - replaced)
  local entries = redis.call('ZCARD', order)
  for _ = 1, MAX_ANSWERS_REMOVED do
    local oldest = redis.call('ZRANGE', order, 0, 0, 'WITHSCORES')
    if oldest[1] == digest then
      return 0
    elseif taken + bytes <= max_bytes and entries <= max_entries
      and number(oldest[2], 0) / 1000 + 1000 * ttl_s > now_ms then
      break
    end
    redis.call('ZREM', order, oldest[1])
    taken, entries = math.max(0, taken - remove_answer(tenant, oldest[1])), entries - 1
  end
  return taken
end
