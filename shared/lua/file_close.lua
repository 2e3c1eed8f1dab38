-- file_close: finishes a file, which from now on can be read and is in its tenant's lists.
-- KEYS file file_parts files idem
-- ARGV
--   id text · the file; lists are ordered by it
--   tenant text · its owner
--   purpose text · what the file is for
--   filename text · its name
--   ttl_s int · how long it is kept, in s
--   idem_digest text · digest of the Idempotency-Key, '' for none
--   body_digest text · digest of the upload, which identifies a repetition of it
-- ANSWERS closed repeated mismatch gone
--   closed: a list of the fields and values of the file's hash
--   repeated: the id of the file that was finished with the same Idempotency-Key; the fields and values of its hash
--   mismatch: the id of the file that was finished with the same Idempotency-Key and another body
--   gone: another tenant has a file with this id, or the file has no part
-- KEEPS 9
-- USES clock oom_write mark index file_bytes

local saved = read_fields(k_file .. id, { 'tenant', 'bytes', 'kept_s', 'created_ms', 'home', 'record_bytes' })
if saved.tenant ~= tenant then
  return { 'gone' }
end
local idem = k_idem .. tenant .. '.' .. idem_digest
if not saved.created_ms and idem_digest ~= '' then
  local other_id, digest = string.match(redis.call('GET', idem) or '', '^(%S+) (%S*)$')
  local other = other_id and read_fields(k_file .. other_id, { 'tenant', 'created_ms' }) or {}
  if other.tenant == tenant and other.created_ms then
    if digest ~= body_digest then
      return { 'mismatch', other_id }
    end
    return { 'repeated', other_id, redis.call('HGETALL', k_file .. other_id) }
  end
end
if not saved.created_ms then
  local home, bytes, kept_s = saved.home or file_bytes.STORE, number(saved.bytes, 0, 0), number(saved.kept_s, 0, 0)
  local new_record_bytes, new_kept_s = file_bytes.FILE_RECORD_BYTES + #filename, file_bytes.file_period_s(ttl_s)
  if idem_digest ~= '' then
    new_record_bytes = new_record_bytes + file_bytes.IDEM_BYTES
    redis.call('SET', idem, id .. ' ' .. body_digest, 'PX', 1000 * ttl_s)
    redis.call('HSET', k_file .. id, 'idem', idem_digest)
  end
  file_bytes.uncount_file_bytes(home, tenant, kept_s, bytes)
  file_bytes.uncount_file_bytes(file_bytes.STORE, tenant, kept_s, number(saved.record_bytes, 0, 0))
  file_bytes.count_file_bytes(home, tenant, new_kept_s, bytes)
  file_bytes.count_file_bytes(file_bytes.STORE, tenant, new_kept_s, new_record_bytes)
  redis.call('HSET', k_file .. id, 'kept_s', whole(new_kept_s), 'record_bytes', whole(new_record_bytes),
    'created_ms', whole(now_ms), 'expires_ms', whole(now_ms + 1000 * ttl_s), 'purpose', purpose, 'filename', filename)
  redis.call('PEXPIRE', k_file .. id, 1000 * ttl_s)
  redis.call('PEXPIRE', k_file_parts .. id, 1000 * ttl_s)
  for _, index in ipairs({ k_files .. tenant, k_files .. tenant .. '.' .. purpose }) do
    redis.call('ZADD', index, 0, id)
    index.trim_index(index, k_file)
    index.keep_key(index, 1000 * ttl_s)
  end
end
return { 'closed', redis.call('HGETALL', k_file .. id) }
