-- file_add: stores one part of a file that is being written.
-- KEYS file file_parts
-- ARGV
--   id text · the file
--   tenant text · its owner
--   part int · the number of the part, from 0
--   content text · the bytes of the part
--   forced int · 1 to store it even if the tenant's bytes are exhausted, as the results of a batch
-- ANSWERS added full gone
--   added: the length of the file so far
--   full: the bytes that the tenant's jobs and files take; the most that they may take
--   gone: parts before this one are no longer there
-- KEEPS 9
-- USES clock mark file_bytes

-- How long a file is kept that nobody finishes.
local UNFINISHED_S = 3600
local saved = redis.call('HMGET', k_file .. id, 'tenant', 'bytes', 'kept_s')
local bytes = number(saved[2], 0, 0)
if saved[1] and saved[1] ~= tenant or part > 0 and not saved[1] then
  return { 'gone' }
end
if not saved[1] then
  -- Parts of a file whose record is gone would not be counted.
  redis.call('UNLINK', k_file_parts .. id)
end
if redis.call('HEXISTS', k_file_parts .. id, part) == 1 then
  return { 'added', bytes }
end
local taken, most = bytes_of_tenant(tenant)
if forced == 0 and most and taken + #content > most then
  return { 'full', taken, most }
end
redis.call('HSET', k_file_parts .. id, part, content)
local kept_s = number(saved[3]) or file_period_s(UNFINISHED_S)
redis.call('HSET', k_file .. id, 'tenant', tenant, 'bytes', whole(bytes + #content), 'kept_s', whole(kept_s))
redis.call('PEXPIRE', k_file .. id, 1000 * UNFINISHED_S)
redis.call('PEXPIRE', k_file_parts .. id, 1000 * UNFINISHED_S)
count_file_bytes(tenant, kept_s, #content)
return { 'added', bytes + #content }
