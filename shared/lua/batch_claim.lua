-- batch_claim: gives one process the next batch that is due, on which no other process works for a time.
-- KEYS open_batches batch_record batch_lines
-- ARGV
--   token text · the claim, which identifies this process to batch_step and admit
--   lease_ms int · for how long the batch is this process's
-- ANSWERS claimed none
--   claimed: the batch's id; now in ms; its open lines, each with its text; every field and value of its record
--   none: ms until a batch is due, or -1 for none
-- KEEPS 9
-- USES clock oom_write mark open_batches

-- A batch is due at most this long after its last turn, or when its claim ends. No script writes a later time.
local LATEST_MS = 120000
local EXAMINED = 16
local due = redis.call('ZRANGEBYSCORE', k_open_batches, '-inf', now_ms, 'LIMIT', 0, EXAMINED)
local latest_ms = now_ms + math.max(LATEST_MS, 2 * lease_ms)
for _, id in ipairs(redis.call('ZRANGEBYSCORE', k_open_batches, latest_ms, '+inf', 'LIMIT', 0, EXAMINED)) do
  due[#due + 1] = id
end
for _, id in ipairs(due) do
  local saved = read_fields(k_batch_record .. id, { 'status', 'tenant' })
  if saved.status and not open_batches.BATCH_ENDED[saved.status] then
    redis.call('HSET', k_batch_record .. id, 'token', token)
    redis.call('ZADD', k_open_batches, now_ms + lease_ms, id)
    -- Another program may have deleted the set.
    open_batches.note_open_batch(saved.tenant or '', id, redis.call('PTTL', k_batch_record .. id))
    return { 'claimed', id, now_ms, redis.call('HGETALL', k_batch_lines .. id),
      redis.call('HGETALL', k_batch_record .. id) }
  end
  redis.call('ZREM', k_open_batches, id)
end
local next_due = redis.call('ZRANGE', k_open_batches, 0, 0, 'WITHSCORES')[2]
return { 'none', next_due and math.max(0, math.ceil(number(next_due, 0) - now_ms)) or -1 }
