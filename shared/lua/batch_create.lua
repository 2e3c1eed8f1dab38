-- batch_create: creates a batch for the lines of a file.
-- KEYS file batches batch_record open_batches idem
-- ARGV
--   id text · the batch; lists are ordered by it
--   tenant text · its owner
--   input_file text · the file
--   window_ms int · how long its lines may take
--   ttl_s int · how long its record is kept after that, in s
--   idem_digest text · digest of the Idempotency-Key, '' for none
--   body_digest text · digest of the body, which identifies a repetition of the request
--   fields rest · further fields of its record and their values
-- ANSWERS created mismatch no_file short_file full exhausted
--   created: the batch's id; a list of the fields and values of its record
--   mismatch: the id of the batch that was created with the same Idempotency-Key and another body
--   no_file: the tenant has no such file
--   short_file: the file expires before the batch
--   full: the number of the tenant's open batches; the most that there may be
--   exhausted: whose bytes are exhausted, `tenant` or `all`; how many there are; how many there may be
-- KEEPS 9
-- USES clock mark index file_bytes open_batches

local function created(created_id)
  return { 'created', created_id, redis.call('HGETALL', k_batch_record .. created_id) }
end
if redis.call('EXISTS', k_batch_record .. id) == 1 then
  return created(id)
end
local idem = k_idem .. tenant .. '.' .. idem_digest
if idem_digest ~= '' then
  local other_id, digest = string.match(redis.call('GET', idem) or '', '^(%S+) (%S*)$')
  if other_id and redis.call('HGET', k_batch_record .. other_id, 'tenant') == tenant then
    if digest ~= body_digest then
      return { 'mismatch', other_id }
    end
    return created(other_id)
  end
end

local file = read_fields(k_file .. input_file, { 'tenant', 'expires_ms' })
if file.tenant ~= tenant or not file.expires_ms then
  return { 'no_file' }
end
if number(file.expires_ms, 0, 0) < now_ms + window_ms then
  return { 'short_file' }
end
local open = #open_batches.ids_of(tenant) / 2
if open >= open_batches.MAX_OPEN_BATCHES then
  return { 'full', open, open_batches.MAX_OPEN_BATCHES }
end
local bytes_of_record = file_bytes.BATCH_RECORD_BYTES + (idem_digest ~= '' and file_bytes.IDEM_BYTES or 0)
for i = fields, #ARGV do
  bytes_of_record = bytes_of_record + #ARGV[i]
end
local whose, taken, most = file_bytes.exhausted_by(file_bytes.STORE, tenant, bytes_of_record)
if whose then
  return { 'exhausted', whose, taken, most }
end
local ttl_ms = window_ms + 1000 * ttl_s
local record_kept_s = file_bytes.file_period_s(ttl_ms / 1000)
redis.call('HSET', k_batch_record .. id, 'tenant', tenant, 'input_file', input_file, 'status', 'validating',
  'created_ms', whole(now_ms), 'expires_ms', whole(now_ms + window_ms), 'ttl_s', ttl_s,
  'record_kept_s', whole(record_kept_s), unpack(ARGV, fields))
redis.call('PEXPIRE', k_batch_record .. id, ttl_ms)
file_bytes.count_file_bytes(file_bytes.STORE, tenant, record_kept_s, bytes_of_record)
open_batches.note_open_batch(tenant, id, ttl_ms)
redis.call('ZADD', k_batches .. tenant, 0, id)
index.trim_index(k_batches .. tenant, k_batch_record)
index.keep_key(k_batches .. tenant, ttl_ms)
redis.call('ZADD', k_open_batches, now_ms, id)
if idem_digest ~= '' then
  redis.call('SET', idem, id .. ' ' .. body_digest, 'PX', ttl_ms)
end
return created(id)
