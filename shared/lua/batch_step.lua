-- batch_step: writes the progress of a batch from the process that claimed it, all of it or nothing.
-- KEYS open_batches batch_record batch_lines batch_answers open_batches_of
-- ARGV
--   id text · the batch
--   token text · the claim
--   rest_ms int · ms until the batch is due again; with -1, the batch ends if its status changes
--   from_status text · the status that changes
--   to_status text · the new status, '' to change none
--   writes rest · threes: `field`, its name and value; `line`, its number and text; `answer`, its number and text
-- ANSWERS stepped lost
--   stepped: the batch's status; its numbers of lines that completed and that failed
--   lost: another process has claimed the batch
-- KEEPS 9 13
-- USES clock oom_write mark file_bytes webhook

-- An answer begins with this character if it is one for the file of errors.
local FAILED = 'e'
-- The bytes that a line's answer takes besides its text.
local ANSWER_BYTES = 100
local saved = read_fields(k_batch_record .. id, { 'token', 'status', 'tenant', 'completed', 'failed', 'kept_s',
  'answer_bytes', 'record_kept_s', 'callback_url' })
if saved.token ~= token then
  return { 'lost' }
end
local record, status, tenant = k_batch_record .. id, saved.status or '', saved.tenant or ''
local completed, failed = number(saved.completed, 0, 0), number(saved.failed, 0, 0)
local ttl_ms = math.max(1000, redis.call('PTTL', record))
local kept_s, new_bytes, bytes_of_record = number(saved.kept_s) or file_bytes.file_period_s(ttl_ms / 1000), 0, 0
for i = writes, #ARGV, 3 do
  local kind, name, value = ARGV[i], ARGV[i + 1], ARGV[i + 2]
  if kind == 'field' then
    bytes_of_record = bytes_of_record + #value - redis.call('HSTRLEN', record, name)
    redis.call('HSET', record, name, value)
  elseif kind == 'line' then
    redis.call('HSET', k_batch_lines .. id, name, value)
  else
    if redis.call('HSETNX', k_batch_answers .. id, name, value) == 1 then
      local is_failed = string.sub(value, 1, 1) == FAILED
      completed, failed = completed + (is_failed and 0 or 1), failed + (is_failed and 1 or 0)
      new_bytes = new_bytes + #value + ANSWER_BYTES
    end
    redis.call('HDEL', k_batch_lines .. id, name)
  end
end
local answer_bytes = number(saved.answer_bytes, 0, 0) + new_bytes
redis.call('HSET', record, 'completed', whole(completed), 'failed', whole(failed), 'kept_s', whole(kept_s),
  'answer_bytes', whole(answer_bytes))
if new_bytes > 0 then
  file_bytes.count_file_bytes(file_bytes.STORE, tenant, kept_s, new_bytes)
end
if bytes_of_record > 0 then
  file_bytes.count_file_bytes(file_bytes.STORE, tenant, number(saved.record_kept_s)
    or file_bytes.file_period_s(ttl_ms / 1000), bytes_of_record)
end
local changes = to_status ~= '' and status == from_status
if changes then
  status = to_status
  redis.call('HSET', record, 'status', to_status, to_status .. '_ms', whole(now_ms))
end
if rest_ms < 0 and changes then
  redis.call('ZREM', k_open_batches, id)
  redis.call('SREM', k_open_batches_of .. tenant, id)
  redis.call('UNLINK', k_batch_lines .. id, k_batch_answers .. id)
  redis.call('HDEL', record, 'token')
  file_bytes.uncount_file_bytes(file_bytes.STORE, tenant, kept_s, answer_bytes)
  if saved.callback_url then
    webhook.tell_end(tenant, id, 'batch', saved.callback_url, redis.call('HGETALL', record), '')
  end
else
  redis.call('ZADD', k_open_batches, now_ms + math.max(0, rest_ms), id)
  redis.call('PEXPIRE', k_batch_lines .. id, ttl_ms)
  redis.call('PEXPIRE', k_batch_answers .. id, ttl_ms)
end
return { 'stepped', status, completed, failed }
