-- file_close: finishes a file, which from now on can be read and is in its tenant's lists.
-- KEYS file file_parts files
-- ARGV
--   id text · the file; lists are ordered by it
--   tenant text · its owner
--   purpose text · what the file is for
--   filename text · its name
--   ttl_s int · how long it is kept, in s
-- ANSWERS closed gone
--   closed: every field and value of the file's hash
--   gone: another tenant has a file with this id, or the file has no part
-- KEEPS 9
-- USES clock afford mark index file_bytes

local saved = redis.call('HMGET', k_file .. id, 'tenant', 'bytes', 'kept_s', 'created_ms', 'home', 'record_bytes')
if saved[1] ~= tenant then
  return { 'gone' }
end
if not saved[4] then
  local home, bytes, kept_s = saved[5] or STORE, number(saved[2], 0, 0), number(saved[3], 0, 0)
  local record_bytes, new_kept_s = FILE_RECORD_BYTES + #filename, file_period_s(ttl_s)
  uncount_file_bytes(home, tenant, kept_s, bytes)
  uncount_file_bytes(STORE, tenant, kept_s, number(saved[6], 0, 0))
  count_file_bytes(home, tenant, new_kept_s, bytes)
  count_file_bytes(STORE, tenant, new_kept_s, record_bytes)
  redis.call('HSET', k_file .. id, 'kept_s', whole(new_kept_s), 'record_bytes', whole(record_bytes),
    'created_ms', whole(now_ms), 'expires_ms', whole(now_ms + 1000 * ttl_s), 'purpose', purpose, 'filename', filename)
  redis.call('PEXPIRE', k_file .. id, 1000 * ttl_s)
  redis.call('PEXPIRE', k_file_parts .. id, 1000 * ttl_s)
  for _, index in ipairs({ k_files .. tenant, k_files .. tenant .. '.' .. purpose }) do
    redis.call('ZADD', index, 0, id)
    trim_index(index, k_file)
    keep_key(index, 1000 * ttl_s)
  end
end
return { 'closed', unpack(redis.call('HGETALL', k_file .. id)) }
