-- batch_create: creates a batch for the lines of a file.
-- KEYS file batches batch_record open_batches
-- ARGV
--   id text · the batch
--   tenant text · its owner
--   input_file text · the file
--   window_ms int · how long its lines may take
--   ttl_s int · how long its record is kept after that, in s
--   fields rest · further fields of its record and their values
-- ANSWERS created no_file short_file full
--   created: every field and value of the batch's record
--   no_file: the tenant has no such file
--   short_file: the file expires before the batch
--   full: the number of the tenant's open batches, of which there may be no more
-- KEEPS 9
-- USES clock mark index

-- The most open batches of a tenant among its newest ones that are counted.
local MAX_OPEN, COUNTED = 32, 64
local file = redis.call('HMGET', k_file .. input_file, 'tenant', 'expires_ms')
if redis.call('EXISTS', k_batch_record .. id) == 0 then
  if file[1] ~= tenant or not file[2] then
    return { 'no_file' }
  end
  if number(file[2], 0, 0) < now_ms + window_ms then
    return { 'short_file' }
  end
  local open = 0
  for _, other in ipairs(redis.call('ZREVRANGE', k_batches .. tenant, 0, COUNTED - 1)) do
    open = open + (redis.call('ZSCORE', k_open_batches, other) and 1 or 0)
  end
  if open >= MAX_OPEN then
    return { 'full', open }
  end
  local ttl_ms = window_ms + 1000 * ttl_s
  redis.call('HSET', k_batch_record .. id, 'tenant', tenant, 'input_file', input_file, 'status', 'validating',
    'created_ms', whole(now_ms), 'expires_ms', whole(now_ms + window_ms), 'ttl_s', ttl_s,
    unpack(ARGV, fields))
  redis.call('PEXPIRE', k_batch_record .. id, ttl_ms)
  redis.call('HINCRBY', k_file .. input_file, 'readers', 1)
  redis.call('ZADD', k_batches .. tenant, now_ms, id)
  keep_key(k_batches .. tenant, ttl_ms)
  redis.call('ZADD', k_open_batches, now_ms, id)
end
return { 'created', unpack(redis.call('HGETALL', k_batch_record .. id)) }
