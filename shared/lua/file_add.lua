-- file_add: stores one part of a file that is being written, or counts one that is stored in a folder.
-- KEYS file file_parts
-- ARGV
--   id text · the file
--   tenant text · its owner
--   home text · where its parts are kept: store or folder
--   part int · the number of the part, from 0
--   bytes int · the length of the part
--   content text · the bytes of the part; '' if they are in a folder
--   forced int · 1 to store it even if the bytes of files are exhausted, as the results of a batch
-- ANSWERS added exhausted gone
--   added: the length of the file so far
--   exhausted: whose bytes are exhausted, `tenant` or `all`; how many there are; how many there may be
--   gone: parts before this one are no longer there
-- KEEPS 9
-- USES clock mark file_bytes

-- How long a file is kept that nobody finishes.
local UNFINISHED_S = 3600
local saved = read_fields(k_file .. id, { 'tenant', 'bytes', 'kept_s', 'record_bytes', 'parts' })
local length, parts = number(saved.bytes, 0, 0), number(saved.parts, 0, 0)
if saved.tenant and saved.tenant ~= tenant or part > parts then
  return { 'gone' }
end
if part < parts then
  return { 'added', length }
end
local bytes_of_record = saved.tenant and 0 or file_bytes.FILE_RECORD_BYTES
if forced == 0 then
  local whose, taken, most = file_bytes.exhausted_by(home, tenant, bytes)
  if not whose and bytes_of_record > 0 then
    whose, taken, most = file_bytes.exhausted_by(file_bytes.STORE, tenant, bytes_of_record + #content)
  end
  if whose then
    return { 'exhausted', whose, taken, most }
  end
end
if not saved.tenant then
  -- Parts of a file whose record is gone would not be counted.
  redis.call('UNLINK', k_file_parts .. id)
end
if content ~= '' then
  redis.call('HSET', k_file_parts .. id, part, content)
  redis.call('PEXPIRE', k_file_parts .. id, 1000 * UNFINISHED_S)
end
local kept_s = number(saved.kept_s) or file_bytes.file_period_s(UNFINISHED_S)
redis.call('HSET', k_file .. id, 'tenant', tenant, 'home', home, 'bytes', whole(length + bytes),
  'parts', whole(parts + 1), 'kept_s', whole(kept_s), 'record_bytes', whole(number(saved.record_bytes, bytes_of_record,
  0)))
redis.call('PEXPIRE', k_file .. id, 1000 * UNFINISHED_S)
file_bytes.count_file_bytes(home, tenant, kept_s, bytes)
if bytes_of_record > 0 then
  file_bytes.count_file_bytes(file_bytes.STORE, tenant, kept_s, bytes_of_record)
end
return { 'added', length + bytes }
