-- admit: takes a job whole and for good, or refuses it and leaves nothing of it.
-- KEYS config inflight order jobs tenant tenants payload idem wake pool polls queues pools rq_job
-- ARGV
--   id text · the job's id; the same id again answers the same admission
--   tenant text · who pays
--   slug text · the model as it stands in keys
--   model text · the model as it is served
--   prompt_tokens int · estimate at the door
--   max_tokens int · the most the job may generate
--   cost_mwt int · estimated cost in thousandths of a weighted token
--   deadline_in_ms int · patience from now
--   latest_in_ms int · latest start from now; orders the tenant's list
--   start_within_ms int · patience to the first token, 0 for none
--   poll_grace_ms int · abandoned when not polled for this long, 0 for never
--   patience_from text · where the deadline came from
--   idem_digest text · digest of the Idempotency-Key, '' for none
--   body_digest text · digest of the body that goes with it
--   attempt int · how often the client has tried before
--   key_label text · label of the API key
--   traceparent text · kept for the worker's log
--   metadata text · the client's own words as JSON
--   payload text · the request as JSON
--   rq_fields rest · what RQ would save, as field, value, …
-- ANSWERS admitted refused mismatch
--   admitted: id, 1 when it was admitted before, place in the list from 1 or 0 when it no longer waits, inflight
--   refused: reason, limit, value, max, inflight, max inflight, retry hint in ms
--   mismatch: id of the job that the Idempotency-Key belongs to
-- KEEPS 1 2 3 6 7 8 9
-- USES clock job waiting rq stats

local queue = tenant .. '.' .. slug
local function admitted_before(other)
  local rank = redis.call('ZRANK', k_order .. queue, other)
  return { 'admitted', other, 1, rank and rank + 1 or 0, redis.call('ZCARD', k_inflight) }
end

if redis.call('EXISTS', k_rq_job .. id) == 1 then
  return admitted_before(id)
end
local idem = k_idem .. tenant .. '.' .. idem_digest
if idem_digest ~= '' then
  local held = redis.call('GET', idem)
  if held then
    local other, digest = string.match(held, '^(%S+) (%S*)$')
    if other and redis.call('EXISTS', k_rq_job .. other) == 1 then
      if digest ~= body_digest then
        return { 'mismatch', other }
      end
      return admitted_before(other)
    end
  end
end

-- Everything the checks need, read at once.
local set = redis.call('HMGET', k_config, 'draining', 'max_inflight', 'max_queue_size', 'max_queue_tokens', 'live_slots')
local has = redis.call('HMGET', k_tenant .. tenant, 'waiting', 'waiting_tokens', 'policy_max_waiting',
  'policy_max_waiting_tokens')
local live_slots = tonumber(set[5] or 0)
local max_inflight = tonumber(set[2]) or math.max(64, 4 * live_slots)
local max_waiting = tonumber(has[3]) or tonumber(set[3]) or math.max(16, 2 * live_slots)
local max_waiting_tokens = tonumber(has[4]) or tonumber(set[4]) or 65536
local inflight = redis.call('ZCARD', k_inflight)
local waiting, waiting_tokens = tonumber(has[1] or 0), tonumber(has[2] or 0)

-- The mean time between two ends in a pool whose slots are all busy; nil while nothing has ended yet.
local function drain_interval_ms()
  local run_ms = tonumber(redis.call('HGET', k_pools, 'run|' .. slug) or nil)
  return run_ms and run_ms / math.max(1, live_slots)
end

-- Never below base; doubled for each attempt up to three; spread by the id, since clients sleep exactly what they are told.
local function refuse(reason, limit, value, max, base_ms)
  local spread = tonumber(string.sub(redis.sha1hex(id), 1, 4), 16) / 65536 * 0.2
  local hint_ms = base_ms * 2 ^ math.max(0, math.min(attempt, 3)) * (1 + spread)
  hint_ms = math.floor(math.max(50, math.min(60000, hint_ms)))
  local label = label_of(tenant)
  count('yielded')
  count('refused|' .. label .. '|' .. reason)
  count('h|retry_hint|count')
  count('h|retry_hint|sum', hint_ms)
  return { 'refused', reason, limit, value, max, inflight, max_inflight, hint_ms }
end

-- 2. Somebody who could do it.
if redis.call('ZCOUNT', k_pool .. slug, now_ms - LIVE_MS, '+inf') == 0 then
  return refuse('no_worker', 'live_workers', 0, 1, 2000)
end
if set[1] == '1' then
  return refuse('draining', 'draining', 1, 0, 5000)
end
-- 4. The whole system.
if inflight >= max_inflight then
  return refuse('inflight_full', 'inflight', inflight, max_inflight, drain_interval_ms() or 1000)
end
-- 5. The tenant's lists. One job of any size may always wait.
if waiting >= max_waiting then
  return refuse('tenant_queue_full', 'tenant_waiting_jobs', waiting, max_waiting, drain_interval_ms() or 1000)
end
local tokens = prompt_tokens + max_tokens
if waiting > 0 and waiting_tokens + tokens > max_waiting_tokens then
  return refuse('tenant_tokens_full', 'tenant_waiting_tokens', waiting_tokens, max_waiting_tokens,
    drain_interval_ms() or 1000)
end

-- Taken: from here on only writes.
local deadline_ms, latest_us = now_ms + deadline_in_ms, now_us + latest_in_ms * 1000
local ttl_s = tonumber(redis.call('HGET', k_config, 'result_ttl_s') or 3600)
local job_key = k_rq_job .. id
redis.call('HSET', job_key, unpack(ARGV, rq_fields))
redis.call('HSET', job_key, 'enqueued_at', iso(now_ms), 'penstock_state', 'queued', 'penstock_tenant', tenant,
  'penstock_slug', slug, 'penstock_model', model, 'penstock_prompt_tokens', prompt_tokens, 'penstock_max_tokens', max_tokens,
  'penstock_cost_mwt', cost_mwt, 'penstock_charged_mwt', 0, 'penstock_deadline_ms', deadline_ms,
  'penstock_patience_ms', deadline_in_ms, 'penstock_patience_from', patience_from, 'penstock_latest_us', whole(latest_us),
  'penstock_start_within_ms', start_within_ms, 'penstock_poll_grace_ms', poll_grace_ms, 'penstock_admitted_ms', now_ms,
  'penstock_attempts', 0, 'penstock_claim', '', 'penstock_worker', '', 'penstock_cancel', '',
  'penstock_key_label', key_label, 'penstock_traceparent', traceparent, 'penstock_metadata', metadata)
redis.call('SET', k_payload .. id, payload)
redis.call('ZADD', k_inflight, now_ms, id)
local rank = enlist({ id = id, tenant = tenant, slug = slug, queue = queue, prompt_tokens = prompt_tokens,
  max_tokens = max_tokens, cost_mwt = cost_mwt, deadline_ms = deadline_ms, latest_us = latest_us })
if poll_grace_ms > 0 then
  redis.call('ZADD', k_polls, now_ms + poll_grace_ms, id)
end
if idem_digest ~= '' then
  redis.call('SET', idem, id .. ' ' .. body_digest, 'PX', deadline_in_ms + ttl_s * 1000 + 60000)
end
redis.call('ZADD', k_jobs .. tenant, now_ms, id)
redis.call('ZREMRANGEBYSCORE', k_jobs .. tenant, 0, now_ms - 86400000 - ttl_s * 1000)
redis.call('EXPIRE', k_jobs .. tenant, ttl_s + 86400)
redis.call('ZADD', k_tenants, now_ms, tenant)
if not redis.call('HGET', k_tenant .. tenant, 'policy') then
  -- An hour more than the longest deadline there is: it counts what waits and runs.
  redis.call('EXPIRE', k_tenant .. tenant, ttl_s + 86400 + 3600)
end
redis.call('ZADD', k_queues, deadline_ms + ttl_s * 1000, queue)
redis.call('LPUSH', k_wake .. slug, '1')
redis.call('LTRIM', k_wake .. slug, 0, 63)
redis.call('EXPIRE', k_wake .. slug, 60)
count('admitted')
count('admitted|' .. label_of(tenant))
return { 'admitted', id, 0, rank + 1, inflight + 1 }
