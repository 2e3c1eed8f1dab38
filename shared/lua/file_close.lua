-- file_close: finishes a file, which from now on can be read and is in its tenant's list.
-- KEYS file file_parts files
-- ARGV
--   id text · the file
--   tenant text · its owner
--   purpose text · what the file is for
--   filename text · its name
--   ttl_s int · how long it is kept, in s
-- ANSWERS closed gone
--   closed: every field and value of the file's hash
-- KEEPS 9
-- USES clock afford mark file_bytes

local saved = redis.call('HMGET', k_file .. id, 'tenant', 'bytes', 'kept_s', 'created_ms')
if saved[1] and saved[1] ~= tenant then
  return { 'gone' }
end
if not saved[4] then
  -- A file without a byte has no record yet.
  local bytes, kept_s = number(saved[2], 0, 0), number(saved[3], 0, 0)
  local new_kept_s = file_period_s(ttl_s)
  uncount_file_bytes(tenant, kept_s, bytes)
  count_file_bytes(tenant, new_kept_s, bytes)
  redis.call('HSET', k_file .. id, 'tenant', tenant, 'bytes', whole(bytes), 'kept_s', whole(new_kept_s),
    'created_ms', whole(now_ms), 'expires_ms', whole(now_ms + 1000 * ttl_s), 'purpose', purpose, 'filename', filename)
  redis.call('PEXPIRE', k_file .. id, 1000 * ttl_s)
  redis.call('PEXPIRE', k_file_parts .. id, 1000 * ttl_s)
  redis.call('ZADD', k_files .. tenant, now_ms, id)
  keep_key(k_files .. tenant, 1000 * ttl_s)
end
return { 'closed', unpack(redis.call('HGETALL', k_file .. id)) }
