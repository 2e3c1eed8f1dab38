-- file_delete: deletes a file, unless a batch still reads it.
-- KEYS file file_parts files idem
-- ARGV
--   id text · the file
--   tenant text · its owner
-- ANSWERS deleted used gone
-- KEEPS 9
-- USES clock oom_write mark file_bytes open_batches

local saved = read_fields(k_file .. id, { 'tenant', 'bytes', 'kept_s', 'home', 'record_bytes', 'purpose', 'idem' })
if saved.tenant ~= tenant then
  return { 'gone' }
end
local open = open_batches.ids_of(tenant)
for i = 2, #open, 2 do
  if open[i] == id then
    return { 'used' }
  end
end
local kept_s = number(saved.kept_s, 0, 0)
file_bytes.uncount_file_bytes(saved.home or file_bytes.STORE, tenant, kept_s, number(saved.bytes, 0, 0))
file_bytes.uncount_file_bytes(file_bytes.STORE, tenant, kept_s, number(saved.record_bytes, 0, 0))
if saved.idem then
  -- As long as this file exists, its Idempotency-Key names no other one.
  redis.call('DEL', k_idem .. tenant .. '.' .. saved.idem)
end
redis.call('UNLINK', k_file .. id, k_file_parts .. id)
redis.call('ZREM', k_files .. tenant, id)
redis.call('ZREM', k_files .. tenant .. '.' .. (saved.purpose or ''), id)
return { 'deleted' }
