-- passages_keep: stores the passages that were found for a query, and removes the tenant's oldest ones to make room.
-- KEYS passages passage_ages passages_dropped passage_bytes
-- ARGV
--   tenant text · the tenant whose collection was searched
--   digest text · digest of the collection's name, the query, the filter, the number of passages and the mode
--   content text · the passages, and the version of the collection
--   since_ms int · the time that passages_find answered before the search began
--   ttl_s int · how long they are kept, in s
--   max_bytes int · how many bytes the passages of a tenant may take
-- ANSWERS kept full dropped
--   kept: the bytes that the tenant's passages take now
--   full: this entry is too large, or the passages of all tenants take too many bytes
--   dropped: the tenant's passages have been deleted since the search began
-- KEEPS 9
-- USES clock mark settings file_bytes kept_periods cached_passages

-- One entry may take this part of the tenant's bytes, and the passages of all tenants this part of the store's memory.
local ENTRY_PART, STORE_PART = 4, 16
local entry = cached_passages.new_entry(content, ttl_s)
if number(redis.call('GET', k_passages_dropped .. tenant), 0, 0) >= since_ms then
  return { 'dropped' }
elseif entry.bytes * ENTRY_PART > max_bytes then
  return { 'full' }
end
local key, ages, store_bytes = k_passages .. tenant, k_passage_ages .. tenant, settings.read_setting('store_bytes')
-- The first write is one that a store without memory refuses (lib/base/oom_write.lua).
redis.call('ZADD', ages, now_ms, digest)
local taken = cached_passages.make_room(tenant, digest, entry.bytes, max_bytes, ttl_s)
local most = store_bytes and store_bytes / STORE_PART or math.huge
local fits = taken + entry.bytes <= max_bytes and file_bytes.sum_of_periods(k_passage_bytes) + entry.bytes <= most
if fits then
  redis.call('HSET', key, digest, entry.stored)
  kept_periods.count_kept(key, k_passage_bytes, entry.period_s, entry.bytes)
  taken = taken + entry.bytes
else
  redis.call('ZREM', ages, digest)
end
if taken > 0 then
  redis.call('HSET', key, cached_passages.BYTES_FIELD, whole(taken))
else
  redis.call('UNLINK', key)
end
redis.call('PEXPIRE', key, 1000 * ttl_s)
redis.call('PEXPIRE', ages, 1000 * ttl_s)
if not fits then
  return { 'full' }
end
return { 'kept', taken }
