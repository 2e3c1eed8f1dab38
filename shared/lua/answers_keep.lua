-- answers_keep: stores an answer in a tenant's semantic cache, and removes the tenant's oldest ones to make room.
-- KEYS answers answer_order answer_vectors answer_bytes tenant
-- ARGV
--   tenant text · the tenant whose job has ended
--   digest text · digest of the scope and the prompt
--   content text · the answer
--   vector text · the scope, and the vector of the prompt
--   ttl_s int · how long it is kept, in s
--   max_entries int · the most answers of a tenant
--   max_bytes int · how many bytes the answers of a tenant may take
-- ANSWERS kept full off
--   kept: the bytes that the tenant's answers take now
--   full: this entry is too large, or the answers of all tenants take too many bytes
--   off: the tenant's policy does not allow the cache, perhaps because the tenant was removed meanwhile
-- KEEPS 9
-- USES clock mark settings file_bytes kept_periods cached_answers

-- One entry may take this part of the tenant's bytes, and the answers of all tenants this part of the store's memory.
local ENTRY_PART, STORE_PART = 4, 16
local entry = cached_answers.new_answer(content, vector, ttl_s)
if redis.call('HGET', k_tenant .. tenant, 'policy_semantic_cache') ~= '1' then
  return { 'off' }
elseif entry.bytes * ENTRY_PART > max_bytes then
  return { 'full' }
end
local key, order, vectors = k_answers .. tenant, k_answer_order .. tenant, k_answer_vectors .. tenant
local store_bytes = settings.read_setting('store_bytes')
-- No two answers have the same time, so that doors can list those after the last one that they know.
local last = redis.call('ZREVRANGE', order, 0, 0, 'WITHSCORES')
-- The first write is one that a store without memory refuses (lib/base/oom_write.lua).
redis.call('ZADD', order, whole(math.max(now_us, number(last[2], 0, 0) + 1)), digest)
local taken = cached_answers.make_answer_room(tenant, digest, entry.bytes, max_bytes, max_entries, ttl_s)
local most = store_bytes and store_bytes / STORE_PART or math.huge
local fits = taken + entry.bytes <= max_bytes and redis.call('ZCARD', order) <= max_entries
  and file_bytes.sum_of_periods(k_answer_bytes) + entry.bytes <= most
if fits then
  redis.call('HSET', key, digest, entry.stored)
  redis.call('HSET', vectors, digest, vector)
  kept_periods.count_kept(key, k_answer_bytes, entry.period_s, entry.bytes)
  taken = taken + entry.bytes
else
  redis.call('ZREM', order, digest)
end
if taken > 0 then
  redis.call('HSET', key, cached_answers.ANSWER_BYTES_FIELD, whole(taken))
else
  redis.call('UNLINK', key)
end
for _, each in ipairs({ key, order, vectors }) do
  redis.call('PEXPIRE', each, 1000 * ttl_s)
end
if not fits then
  return { 'full' }
end
return { 'kept', taken }
