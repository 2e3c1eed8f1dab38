-- file_delete: deletes a file, unless a batch still reads it.
-- KEYS file file_parts files idem
-- ARGV
--   id text · the file
--   tenant text · its owner
-- ANSWERS deleted used gone
-- KEEPS 9
-- USES clock oom_write mark file_bytes open_batches

local saved = redis.call('HMGET', k_file .. id, 'tenant', 'bytes', 'kept_s', 'home', 'record_bytes', 'purpose', 'idem')
if saved[1] ~= tenant then
  return { 'gone' }
end
local open = open_batches.ids_of(tenant)
for i = 2, #open, 2 do
  if open[i] == id then
    return { 'used' }
  end
end
local kept_s = number(saved[3], 0, 0)
file_bytes.uncount_file_bytes(saved[4] or file_bytes.STORE, tenant, kept_s, number(saved[2], 0, 0))
file_bytes.uncount_file_bytes(file_bytes.STORE, tenant, kept_s, number(saved[5], 0, 0))
if saved[7] then
  -- As long as this file exists, its Idempotency-Key names no other one.
  redis.call('DEL', k_idem .. tenant .. '.' .. saved[7])
end
redis.call('UNLINK', k_file .. id, k_file_parts .. id)
redis.call('ZREM', k_files .. tenant, id)
redis.call('ZREM', k_files .. tenant .. '.' .. (saved[6] or ''), id)
return { 'deleted' }
