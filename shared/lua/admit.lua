-- admit: takes a job whole and for good, or refuses it and leaves nothing of it.
-- KEYS config inflight order jobs tenant tenants payload idem supersede polls queues rq_job
-- ARGV
--   id text · the job's id; the same id again answers the same admission
--   tenant text · who pays
--   slug text · the model as it stands in keys
--   model text · the model as it is served
--   prompt_tokens int · estimate at the door
--   max_tokens int · the most the job may generate
--   cost_mwt int · cost in thousandths of a weighted token, -1 to estimate it from learned lengths
--   deadline_in_ms int · patience from now
--   latest_in_ms int · latest start from now, which orders the tenant's list; -1 to work it out
--   start_within_ms int · patience to the first token, 0 for none
--   poll_grace_ms int · abandoned when not polled for this long, 0 for never
--   patience_from text · where the deadline came from
--   idem_digest text · digest of the Idempotency-Key, '' for none
--   body_digest text · digest of the body that goes with it
--   attempt int · how often the client has tried before
--   asked_id text · what a refusal is known again by: the job's id, or what a proxy's repeat of the call has in common
--   key_label text · label of the API key
--   traceparent text · kept for the worker's log
--   metadata text · the client's own words as JSON
--   form text · what the route that took the job wants to read back, as JSON
--   degrade int · 1 when the job may be changed so that it fits
--   supersede_digest text · digest of the supersede_key, '' for none; the tenant's older job of that key is canceled
--   payload text · the request as JSON
--   offer text · names this offering of the job, '' for none: by it the job can be taken back while nobody has heard of it
--   rq_fields rest · what RQ would save, as field, value, …
-- ANSWERS admitted refused mismatch
--   admitted: id, 1 when it was admitted before or 2 when it has been taken back since, place in the list from 1 or 0
--   when it no longer waits, inflight
--   refused: reason, limit, value, max, inflight, max inflight, retry hint in ms, 1 when even an empty system could not,
--   ms that the answer takes by itself or -1 while rates are unknown
--   mismatch: id of the job that the Idempotency-Key belongs to
-- KEEPS 1 2 3 6 7 8 9
-- USES clock job waiting rq stats books lengths verdict hint doorbell finish drop tier
-- RARELY drop move_tier shorten

local queue = tenant .. '.' .. slug
local function taken_back(other)
  local codes = redis.pcall('HMGET', k_rq_job .. other, 'penstock_code', 'penstock_cancel')
  return codes[1] == 'unheard' or codes[2] == 'unheard'
end
local function admitted_before(other)
  -- Whoever comes again hears of the job now, so that the offering which made it can no longer take it back.
  if redis.pcall('HGET', k_rq_job .. other, 'penstock_offer') ~= offer then
    redis.pcall('HDEL', k_rq_job .. other, 'penstock_offer')
  end
  local rank = redis.call('ZRANK', k_order .. queue, other)
  return { 'admitted', other, taken_back(other) and 2 or 1, rank and rank + 1 or 0, redis.call('ZCARD', k_inflight) }
end

if redis.call('EXISTS', k_rq_job .. id) == 1 then
  return admitted_before(id)
end
local idem = k_idem .. tenant .. '.' .. idem_digest
if idem_digest ~= '' then
  local held = redis.call('GET', idem)
  if held then
    local other, digest = string.match(held, '^(%S+) (%S*)$')
    if other and redis.call('EXISTS', k_rq_job .. other) == 1 and not taken_back(other) then
      if digest ~= body_digest then
        return { 'mismatch', other }
      end
      return admitted_before(other)
    end
  end
end

local ask = { tenant = tenant, slug = slug, prompt_tokens = prompt_tokens, max_tokens = max_tokens, cost_mwt = cost_mwt,
  deadline_in_ms = deadline_in_ms, start_within_ms = start_within_ms, degrade = degrade }
look(ask)
if ask.tiered then
  ask.tier = move_tier(ask)
end
-- The older job of the same supersede_key. What waits of it counts no more: a tenant whose list is full may renew.
local supersede = k_supersede .. tenant .. '.' .. supersede_digest
local older = supersede_digest ~= '' and read_job(redis.call('GET', supersede) or '') or nil
if older and older.state == 'queued' then
  ask.inflight, ask.waiting = ask.inflight - 1, ask.waiting - 1
  ask.waiting_tokens = ask.waiting_tokens - older.prompt_tokens - older.max_tokens
  if older.slug == slug then
    ask.own_mwt, ask.pool_mwt, ask.replaced_mwt = ask.own_mwt - older.cost_mwt, ask.pool_mwt - older.cost_mwt, older.cost_mwt
  end
end
count('offered_tokens', prompt_tokens + max_tokens)
local label = label_of(tenant)
local refusal = verdict(ask)
if refusal then
  local reason, limit, value, max, base_ms, hopeless = unpack(refusal)
  local hint_ms = hint_for(ask, reason, base_ms, hopeless, attempt, asked_id)
  count('yielded')
  count('refused|' .. label .. '|' .. reason)
  observe('retry_hint', hint_ms)
  return { 'refused', reason, limit, value, max, ask.inflight, ask.max_inflight, hint_ms, hopeless or 0,
    math.floor(ask.own_ms) }
end

-- Taken: from here on only writes.
if older then
  drop(older, 'superseded', now_ms)
end
-- The list's order is fixed here: the latest start that still ends in time, as far as can be said.
if latest_in_ms < 0 then
  latest_in_ms = ask.rated and math.max(0, math.floor(deadline_in_ms - ask.own_ms)) or deadline_in_ms
end
local deadline_ms, latest_us = now_ms + deadline_in_ms, now_us + latest_in_ms * 1000
local terms = redis.call('HMGET', k_config, 'result_ttl_s', 'lease_ms')
local ttl_s = tonumber(terms[1] or 3600)
-- The latest that it may end: two leases after its deadline where its worker dies then, and a minute for the reaper.
local ends_in_ms = deadline_in_ms + 2 * tonumber(terms[2] or 15000) + 60000
local job_key = k_rq_job .. id
redis.call('HSET', job_key, unpack(ARGV, rq_fields))
redis.call('HSET', job_key, 'enqueued_at', iso(now_ms), 'penstock_state', 'queued', 'penstock_tenant', tenant,
  'penstock_slug', slug, 'penstock_model', model, 'penstock_prompt_tokens', prompt_tokens, 'penstock_max_tokens', max_tokens,
  'penstock_cost_mwt', ask.cost_mwt, 'penstock_charged_mwt', 0, 'penstock_deadline_ms', deadline_ms,
  'penstock_patience_ms', deadline_in_ms, 'penstock_patience_from', patience_from, 'penstock_latest_us', whole(latest_us),
  'penstock_start_within_ms', start_within_ms, 'penstock_poll_grace_ms', poll_grace_ms, 'penstock_admitted_ms', now_ms,
  'penstock_eta_ms', ask.rated and math.floor(now_ms + ask.finish_ms) or '', 'penstock_attempts', 0, 'penstock_claim', '', 'penstock_worker', '', 'penstock_cancel', '',
  'penstock_key_label', key_label, 'penstock_traceparent', traceparent, 'penstock_metadata', metadata,
  'penstock_form', form, 'penstock_offer', offer)
if ask.degrades and degrade == 1 then
  -- What was settled at the door holds at the claim: a job that was taken for its short answer gets no long one.
  redis.call('HSET', job_key, 'penstock_degrade', ask.shortened and ask.tier or 0)
end
redis.call('SET', k_payload .. id, payload)
redis.call('ZADD', k_inflight, now_ms, id)
local rank = enlist({ id = id, tenant = tenant, slug = slug, queue = queue, prompt_tokens = prompt_tokens,
  max_tokens = max_tokens, cost_mwt = ask.cost_mwt, wanted_ms = wanted_until(deadline_ms, now_ms, start_within_ms),
  latest_us = latest_us })
if poll_grace_ms > 0 then
  redis.call('ZADD', k_polls, now_ms + poll_grace_ms, id)
end
if idem_digest ~= '' then
  redis.call('SET', idem, id .. ' ' .. body_digest, 'PX', ends_in_ms + ttl_s * 1000)
end
if supersede_digest ~= '' then
  redis.call('SET', supersede, id, 'PX', ends_in_ms)
end
redis.call('ZADD', k_jobs .. tenant, now_ms, id)
-- Now and then: what can no longer be read leaves the index.
if now_us % 16 == 0 then
  redis.call('ZREMRANGEBYSCORE', k_jobs .. tenant, 0, now_ms - 86400000 - ttl_s * 1000)
end
redis.call('EXPIRE', k_jobs .. tenant, ttl_s + 86400)
redis.call('ZADD', k_tenants, now_ms, tenant)
redis.call('HSETNX', k_tenant .. tenant, 'first_ms', now_ms)
if ask.next_rpm_ms then
  redis.call('HSET', k_tenant .. tenant, 'rpm_ms', math.floor(ask.next_rpm_ms))
end
if ask.next_tpm_ms then
  redis.call('HSET', k_tenant .. tenant, 'tpm_ms', math.floor(ask.next_tpm_ms))
end
if not redis.call('HGET', k_tenant .. tenant, 'policy') then
  -- An hour more than the longest deadline there is: it counts what waits and runs.
  redis.call('EXPIRE', k_tenant .. tenant, ttl_s + 86400 + 3600)
end
redis.call('ZADD', k_queues, deadline_ms + ttl_s * 1000, queue)
ring(slug)
judge_hint(ask, attempt)
book_taken(ask, attempt)
count('admitted')
count('admitted|' .. label)
return { 'admitted', id, 0, rank + 1, ask.inflight + 1 }
