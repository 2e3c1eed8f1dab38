-- webhook: keeps the webhooks that the doors have to deliver, until delivery or for a day (docs/webhooks.md).
-- KEYS webhook webhooks webhook_due webhook_turns
-- USES clock file_bytes tenant_bytes

-- How long an end is told again and again, and for how much longer its record is kept. A tenant's webhooks to a
-- receiver that never answers can take many hours for one try each, and the last try must find its record.
local TOLD_FOR_MS, MARGIN_MS = 86400000, 43200000
-- A longer result is not copied: the event is sent without it (MAX_BODY_BYTES in web/webhooks/event.py).
local MAX_COPIED_BYTES = 1048576
-- No try is further away than this: the longest wait of web/webhooks/sender.py, doubled.
local LONGEST_WAIT_MS = 3600000
-- The bytes that a record and its entries in three sets take besides its texts.
local WEBHOOK_BYTES = 1000

-- Returns the most bytes that the webhook of a job is expected to take, which are reserved until the job ends. `texts`
-- is what the client has sent and the job's record has.
local function webhook_bytes(url, texts, answer_bytes)
  -- The record without these texts and the frame of the result take 1,700 and 150 bytes, and more with long names of
  -- tenants and models.
  local COPY_BYTES = 2500
  return WEBHOOK_BYTES + COPY_BYTES + #url + #cjson.encode(texts) + math.min(answer_bytes, MAX_COPIED_BYTES)
end

-- Makes a webhook due at a time, and gives its tenant a turn by then.
local function make_due(tenant, id, due_ms)
  redis.call('ZADD', k_webhook_due .. tenant, due_ms, id)
  local turn_ms = redis.call('ZSCORE', k_webhook_turns, tenant)
  if not turn_ms or number(turn_ms, math.huge) > due_ms then
    redis.call('ZADD', k_webhook_turns, due_ms, tenant)
  end
end

-- Puts a tenant behind those that have waited for longer; it has no turn without a webhook.
local function end_turn(tenant)
  local next_due = redis.call('ZRANGE', k_webhook_due .. tenant, 0, 0, 'WITHSCORES')
  if next_due[2] then
    redis.call('ZADD', k_webhook_turns, math.max(now_ms, number(next_due[2], now_ms)), tenant)
  else
    redis.call('ZREM', k_webhook_turns, tenant)
  end
end

-- Removes a webhook that was told, was given up or is lost.
local function drop_webhook(tenant, id)
  local saved = read_fields(k_webhook .. id, { 'bytes', 'kept_s' })
  redis.call('DEL', k_webhook .. id)
  redis.call('ZREM', k_webhooks, id)
  redis.call('ZREM', k_webhook_due .. tenant, id)
  if saved.bytes and saved.kept_s then
    tenant_bytes.uncount_bytes(tenant, number(saved.kept_s, 0, 0), number(saved.bytes, 0, 0))
  end
end

-- Records that a client is to be told of an end. `kind` is `job` or `batch`, `record` the hash of the job or batch with
-- its last fields, and `result` the job's result. They are copied, because the originals may expire within the day.
local function tell_end(tenant, id, kind, url, record, result)
  local key, copy, is_cut = k_webhook .. id, cjson.encode(record), #result > MAX_COPIED_BYTES
  result = is_cut and '' or result
  local kept_s = file_bytes.file_period_s((TOLD_FOR_MS + MARGIN_MS) / 1000)
  if redis.call('EXISTS', key) == 1 then
    -- A job whose record has expired was admitted anew with the same id. A process that still sends the first end must
    -- not take this one for told, and the bytes of the first copy are free.
    drop_webhook(tenant, id)
  end
  local bytes = WEBHOOK_BYTES + #url + #copy + #result
  redis.call('HSET', key, 'tenant', tenant, 'kind', kind, 'url', url, 'record', copy, 'result', result,
    'cut', is_cut and 1 or 0, 'ended_ms', whole(now_ms), 'tries', 0, 'bytes', whole(bytes), 'kept_s', whole(kept_s))
  redis.call('PEXPIRE', key, TOLD_FOR_MS + MARGIN_MS)
  redis.call('ZADD', k_webhooks, now_ms, id)
  make_due(tenant, id, now_ms)
  tenant_bytes.count_bytes(tenant, kept_s, bytes)
end
