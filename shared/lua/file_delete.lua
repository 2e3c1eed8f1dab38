-- file_delete: deletes a file, unless a batch still reads it.
-- KEYS file file_parts files
-- ARGV
--   id text · the file
--   tenant text · its owner
-- ANSWERS deleted used gone
-- KEEPS 9
-- USES clock afford mark file_bytes

local saved = redis.call('HMGET', k_file .. id, 'tenant', 'bytes', 'kept_s', 'readers')
if saved[1] ~= tenant then
  return { 'gone' }
end
if number(saved[4], 0, 0) > 0 then
  return { 'used' }
end
uncount_file_bytes(tenant, number(saved[3], 0, 0), number(saved[2], 0, 0))
redis.call('UNLINK', k_file .. id, k_file_parts .. id)
redis.call('ZREM', k_files .. tenant, id)
return { 'deleted' }
