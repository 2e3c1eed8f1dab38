-- admit: admits a job, or refuses it without storing the request.
-- KEYS inflight order tenant tenants payload idem supersede polls queues rq_job key_rates routes batch_record
--      batch_lines
-- ARGV
--   id text · the job's id; a repeated call with the same id returns the same admission
--   tenant text · the tenant that owns the job and is charged for it
--   slug text · the model's name in the form used in store keys
--   model text · the name under which workers serve the model
--   prompt_tokens int · the door's estimate of the prompt's length
--   max_tokens int · the largest number of tokens that the job may generate
--   candidates int · how many answers share them
--   cost_mwt int · the job's cost in thousandths of a weighted token, -1 to estimate it from learned answer lengths
--   deadline_in_ms int · ms from now to the deadline
--   latest_in_ms int · ms from now to the latest start, which orders the queue; -1 to compute it here
--   start_within_ms int · ms from now to the start deadline, 0 for none
--   poll_grace_ms int · the job is canceled as abandoned if it is not polled for this long, 0 for never
--   patience_from text · where the deadline came from, which the job's JSON shows; `default` if the client named none
--   start_named int · 1 if the client itself named the start deadline
--   longest_in_ms int · ms to which a deadline that the client did not name may be extended; 0 if it named one
--   idem_digest text · digest of the Idempotency-Key, '' for none
--   body_digest text · digest of the body, which identifies a repeat of the request; '' if repeats are not detected
--   attempt int · how many times the client has already sent this request
--   asked_id text · deduplication id for refusals: the job's id, or an id that a proxy's retry also has
--   metadata text · the client's own metadata as JSON
--   form text · JSON that the HTTP route stores and builds its later responses from
--   degrade int · 1 if the answer may be shortened under overload
--   key_id text · id of the client's API key if the key has bounds of its own, else ''
--   key_rpm int · the key's requests per minute, 0 for no bound
--   key_tpm int · the key's tokens per minute, 0 for no bound
--   key_max_waiting int · the key's largest number of queued jobs, 0 for no bound
--   supersede_digest text · digest of the supersede_key, '' for none; the tenant's older job with that key is canceled
--   prefix text · digests of the prompt's beginnings (lib/pools/prefixes.lua), '' for none
--   payload text · the request as JSON
--   ticket_id text · id of the reservation that the request's return ticket names, '' without a valid ticket
--   ticket_ms int · end of the hint of that reservation, in ms; 0 without a ticket
--   answer_bytes int · the most bytes that the answer is expected to take in the store, with its event stream
--   offer text · this offer's id, '' for none; the door uses it to take the job back if no client gets the answer
--   priority int · the job's priority: -1 for a batch job, 0 or 1
--   ack_replicas int · how many replicas the caller waits for (WAIT) after this call; a repeated call must then write
--   private int · 1 if only pools that are marked as local may take the job
--   callback_url text · where the client is told of the job's end, '' for nowhere
--   batch text · id of the batch whose line this is, '' for none
--   batch_token text · the claim of that batch
--   batch_line int · the number of the line
--   routing_json text · the JSON of lib/admission/routes.lua if the request names a route, '' if it names a pool
--   fewer_tokens int · the door's estimate of the prompt's length with fewer passages; 0 if it has no passages
--   fewer_payload text · the request with fewer passages as JSON, '' for none
--   fewer_form text · the form of that request
--   fewer_at_tier int · 1 if the job gets fewer passages at tiers 1 and 2, although it could be admitted with all
--   kept rest · fields of the job's hash that no check reads, RQ's and ours (shared/jobs/request.py): field, value, …
-- ANSWERS admitted refused mismatch rerouted stale
--   admitted: the job's id; 0 if this call admitted the job, 1 if an earlier call did, 2 if an earlier call did and the
--   job was canceled as unheard since; its position in the queue, from 1, or 0 if it is not queued; number of inflight
--   jobs; if this call admitted the job, then the fields of its view that the caller does not know: now in ms; number
--   of tokens of the jobs before it in the queue, or -1 if unknown; the name of its pool's model; its tokens there, of
--   the prompt and at most of the answer; ms from now to its deadline; the predicted end in ms, or ''; why the route
--   chose the pool, or ''; 1 if only pools that are marked as local may take it; why it has fewer passages, or ''
--   refused: reason; name, value and bound of the quantity that was checked; number of inflight jobs; the bound on
--   inflight jobs; retry hint in ms; 1 if even an empty system could not meet the deadline, else 0; ms to compute the
--   prompt and the answer without waiting, or -1 while rates are unknown; 1 if the wait is longer than the longest
--   hint; the time at which the client is expected, in ms, and for how long, in ms, or 0 and 0; the time at which the
--   budget that is exhausted begins anew, in ms, or 0; the shortest and the longest hint that any request of the tenant
--   to this pool would get now, in ms, or 0 and 0 if that depends on the request
--   mismatch: id of the job that was submitted with the same Idempotency-Key and a different body
--   rerouted: the store's route differs from `routing_json`; the caller has to read it again
--   stale: another process has claimed the batch, the batch is to end, or its line has an answer
-- KEEPS 1 2 3 6 7 8 9
-- USES clock mark settings job_record waiting rq stats reservation facts checks hint doorbell drop index tenant_bytes
-- USES offers generated_weight assess routes spending budget webhook eta fewer_passages history
-- LATER book_taken check_backlog check_bytes check_deadline check_lists check_room check_share credit_mwt_of
-- LATER end_reservation enlist find_reservation fits_after_queued group_in hold_amount index_job is_contested iso
-- LATER keep_offered keep_weight look_at_slots main_rows_of needs_ring paused_ms_of predict prompt_ms_of
-- LATER relax_wait_factor reserve_tokens ring slot_wait_ms tokens_before wanted_until work_before
-- RARELY add_elsewhere cancel_job change_set check_load choose_pool end_unchecked_tier join keep_route kept_places
-- RARELY key_in_use leave_out look_at_group look_at_other_pools most_of move_tier owners_with_jobs period_ends_ms
-- RARELY read_job restore_service shorten spend swap_tokens webhook_bytes why_fewer with_offer

local queue = tenant .. '.' .. slug
local routing = routing_json ~= '' and cjson.decode(routing_json) or nil
-- Whether the door canceled the job because no client received the answer to its offer.
local function was_unheard(other_id)
  local codes = peek_fields(k_rq_job .. other_id, { 'penstock_code', 'penstock_cancel' })
  return codes.penstock_code == 'unheard' or codes.penstock_cancel == 'unheard'
end
local function admitted_before(other_id)
  local offers = redis.pcall('HGET', k_rq_job .. other_id, 'penstock_offer')
  if ack_replicas > 0 then
    -- Whether this call's client receives the job's id depends on the replicas. The job can be taken back if neither
    -- this offer nor an earlier one had them.
    -- WAIT returns at once on a connection that has written nothing. With this write it waits until the replicas have
    -- everything up to here, the job included. The HDEL comes first for the reason that lib/base/oom_write.lua gives.
    redis.call('HDEL', k_rq_job .. other_id, '')
    redis.call('HSET', k_rq_job .. other_id, 'penstock_offer', offers.with_offer(offers, offer))
  elseif offers ~= offer then
    -- This call's client now receives the job's id, so the offer that created the job must no longer be able to cancel
    -- it.
    redis.pcall('HDEL', k_rq_job .. other_id, 'penstock_offer')
  end
  local origin = routing and redis.pcall('HGET', k_rq_job .. other_id, 'origin')
  local rank = redis.call('ZRANK', k_order .. (type(origin) == 'string' and origin or queue), other_id)
  return { 'admitted', other_id, was_unheard(other_id) and 2 or 1, rank and rank + 1 or 0,
    redis.call('ZCARD', k_inflight) }
end

if batch ~= '' then
  local claimed = read_fields(k_batch_record .. batch, { 'token', 'status' })
  if claimed.token ~= batch_token or claimed.status ~= 'in_progress'
    or redis.call('HEXISTS', k_batch_lines .. batch, batch_line) == 0 then
    return { 'stale' }
  end
end
if redis.call('EXISTS', k_rq_job .. id) == 1 then
  return admitted_before(id)
end
local idem = k_idem .. tenant .. '.' .. idem_digest
if idem_digest ~= '' then
  local stored = redis.call('GET', idem)
  if stored then
    local other_id, digest = string.match(stored, '^(%S+) (%S*)$')
    if other_id and redis.call('EXISTS', k_rq_job .. other_id) == 1 and not was_unheard(other_id) then
      if digest ~= body_digest then
        return { 'mismatch', other_id }
      end
      return admitted_before(other_id)
    end
  end
end

if routing and redis.call('HGET', k_routes, routing.name) ~= routing.text then
  return { 'rerouted' }
end

-- Find the tenant's older job with the same supersede_key. If that job is still queued, the checks do not count it.
local supersede = k_supersede .. tenant .. '.' .. supersede_digest
local superseded = supersede_digest ~= '' and job_record.read_job(redis.call('GET', supersede) or '') or nil
local return_id = string.sub(body_digest, 1, 16)
-- Returns the request as it is in a pool, which is this step of the route. `pool` has the name of the pool's model, the
-- slug of that name, the request's tokens there and the bytes of its answer.
local function request_in(pool, step)
  local fixed_bytes = tenant_bytes.record_bytes(#metadata, #form + #callback_url,
    (idem_digest ~= '' and 1 or 0) + (supersede_digest ~= '' and 1 or 0))
  local webhook_bytes = callback_url ~= '' and webhook.webhook_bytes(callback_url, metadata .. form .. callback_url,
    pool.answer_bytes) or 0
  return checks.open_request({ step = step, tenant = tenant, slug = pool.slug, model = pool.model, priority = priority,
    is_batch = priority < 0, prompt_tokens = pool.prompt_tokens, max_tokens = pool.max_tokens, candidates = candidates,
    cost_mwt = cost_mwt, deadline_in_ms = deadline_in_ms, deadline_named = patience_from ~= 'default',
    latest_in_ms = latest_in_ms >= 0 and latest_in_ms or nil, start_within_ms = start_within_ms,
    start_named = start_named == 1, longest_in_ms = longest_in_ms, degrade = degrade, is_private = private == 1,
    key = facts.asked_key(key_id, key_rpm, key_tpm, key_max_waiting), fixed_bytes = fixed_bytes,
    bytes = fixed_bytes + #payload + pool.answer_bytes + webhook_bytes })
end
-- Runs the checks. Finds the reservation of a client that has come back before.
local function run_checks(request)
  return assess.refusal_in_pool(request, superseded, ticket_id, ticket_ms, attempt > 0 and return_id or '')
end
stats.count('offered_tokens', prompt_tokens + max_tokens)
local label = stats.label_of(tenant)
-- Returns the request in its pool, why its route chose it, and the refusal or nil.
local function assess_request()
  if routing then
    return routes.choose_pool(routing, id, request_in, run_checks)
  end
  local request = request_in({ slug = slug, model = model, prompt_tokens = prompt_tokens, max_tokens = max_tokens,
    answer_bytes = answer_bytes }, 0)
  return request, nil, run_checks(request)
end
local request, why, refusal = assess_request()
local fewer = fewer_payload ~= '' and fewer_passages.why_fewer(request, refusal, fewer_at_tier == 1)
if fewer then
  -- The arguments describe the request with fewer passages while it is assessed, and for good if it is admitted.
  prompt_tokens, fewer_tokens, payload, fewer_payload = fewer_tokens, prompt_tokens, fewer_payload, payload
  form, fewer_form = fewer_form, form
  fewer_passages.swap_tokens(routing)
  local other, other_why, other_refusal = assess_request()
  if other_refusal then
    prompt_tokens, payload, form, fewer = fewer_tokens, fewer_payload, fewer_form, nil
    fewer_passages.swap_tokens(routing)
  else
    request, why, refusal = other, other_why, nil
  end
end
local asked, seen, verdict = request.asked, request.seen, request.verdict
if seen.reservation then
  reservation.end_reservation(asked, seen, refusal and 'refused' or 'admitted')
end
if refusal then
  local is_due_to_load, retry_ms, window_ms = hint.depends_on_load(refusal), 0, 0
  local hint_ms, is_capped = hint.hint_for(asked, seen, verdict, refusal, attempt, asked_id)
  if return_id ~= '' and priority >= 0 and is_due_to_load and not is_capped
    and hint.is_in_time(asked, verdict, hint_ms) then
    retry_ms, window_ms = reservation.reserve(asked, seen, return_id, hint_ms)
  else
    hint.book_less(asked, seen, verdict)
  end
  if refusal.reason == 'deadline_unmeetable' and verdict.learned_ms
    and refusal.base_ms <= verdict.learned_ms then
    eta.relax_wait_factor(asked, verdict)
  end
  if is_due_to_load then
    stats.count('load_refusals|' .. asked.slug)
  end
  stats.count('yielded')
  stats.count('refused|' .. label .. '|' .. refusal.reason)
  history.count_in_history(tenant, asked.slug, 'refused.' .. refusal.reason, 1)
  stats.observe('retry_hint', hint_ms)
  local from_ms, to_ms = 0, 0
  -- A client that has no reservation because of its own deadline is no model for others.
  if attempt == 0 and not routing and not seen.reservation and retry_ms == 0
    and (is_capped or hint.is_in_time(asked, verdict, hint_ms)) then
    from_ms, to_ms = hint.shared_hints(seen, verdict, refusal, is_capped)
  end
  return { 'refused', refusal.reason, refusal.limit, refusal.value, refusal.max, seen.inflight, seen.max_inflight,
    hint_ms, refusal.is_hopeless and 1 or 0, math.floor(verdict.compute_ms), is_capped and 1 or 0, retry_ms,
    window_ms, verdict.resets_ms or 0, from_ms, to_ms }
end

-- All checks have passed, so the job is admitted. Everything below writes the admission to the store.
if superseded then
  drop.cancel_job(superseded, 'superseded', now_ms)
end
-- Compute the latest start from which the job is predicted to end by its deadline. It is the job's sort key in the
-- queue and never changes.
slug, model, prompt_tokens, max_tokens = asked.slug, asked.model, asked.prompt_tokens, asked.max_tokens
deadline_in_ms, start_within_ms, queue = verdict.deadline_in_ms, verdict.start_within_ms, tenant .. '.' .. slug
if latest_in_ms < 0 then
  latest_in_ms = seen.has_rates and math.max(0, math.floor(deadline_in_ms - verdict.compute_ms)) or deadline_in_ms
end
local deadline_ms, latest_us = now_ms + deadline_in_ms, now_us + latest_in_ms * 1000
local ttl_s = settings.read_settings({ 'result_ttl_s', 'lease_ms', 'preemption' }).result_ttl_s
-- The longest time until the job ends. If the job's worker dies at the deadline, the job ends up to two leases later;
-- one minute is added for the reaper.
local ends_in_ms = deadline_in_ms + 2 * settings.read_setting('lease_ms') + 60000
local job_key = k_rq_job .. id
redis.call('HSET', job_key, unpack(ARGV, kept))
redis.call('HSET', job_key, 'enqueued_at', rq.iso(now_ms), 'penstock_state', 'queued', 'penstock_tenant', tenant,
  'penstock_slug', slug, 'penstock_model', model, 'penstock_prompt_tokens', prompt_tokens,
  'penstock_max_tokens', max_tokens, 'penstock_cost_mwt', whole(seen.cost_mwt), 'penstock_charged_mwt', 0,
  'penstock_deadline_ms', deadline_ms, 'penstock_patience_ms', deadline_in_ms, 'penstock_patience_from', patience_from,
  'penstock_latest_us', whole(latest_us), 'penstock_start_within_ms', start_within_ms)
-- Lua limits the number of arguments of a call together with the number of the script's locals.
redis.call('HSET', job_key,
  'penstock_poll_grace_ms', poll_grace_ms, 'penstock_admitted_ms', now_ms,
  'penstock_eta_ms', verdict.eta_ms and math.floor(now_ms + verdict.eta_ms) or '', 'penstock_attempts', 0,
  'penstock_claim', '', 'penstock_worker', '', 'penstock_cancel', '',
  'penstock_key_id', key_max_waiting > 0 and key_id or '',
  'penstock_metadata', metadata, 'penstock_form', form, 'penstock_offer', offer)
generated_weight.keep_weight(job_key, seen.generated_weight_milli)
redis.call('HSET', job_key, 'penstock_bytes', whole(asked.bytes), 'penstock_fixed_bytes', whole(asked.fixed_bytes))
-- Stores a field that most jobs lack.
local function keep_if(is_needed, field, value)
  if is_needed then
    redis.call('HSET', job_key, field, value)
  end
end
keep_if(priority ~= 0, 'penstock_priority', priority)
keep_if(candidates > 1, 'penstock_candidates', candidates)
keep_if(verdict.prediction, 'penstock_predicted', verdict.prediction)
keep_if(fewer, 'penstock_fewer', fewer)
keep_if(callback_url ~= '', 'penstock_callback_url', callback_url)
keep_if(seen.is_private, 'penstock_private', 1)
keep_if(prefix ~= '', 'penstock_prefix', prefix)
-- The claim must apply the tier that was in force at admission: a job that was admitted only because a short answer
-- fits must not get a long one.
keep_if(seen.degradation_on and degrade == 1, 'penstock_degrade', verdict.shortened and verdict.tier or 0)
spending.hold_amount(asked, seen, tenant, id)
budget.reserve_tokens(asked, seen, id)
if routing then
  routes.keep_route(routing, asked, why, id)
end
redis.call('SET', k_payload .. id, payload)
redis.call('ZADD', k_inflight, now_ms, id)
local rank = waiting.enlist({ id = id, tenant = tenant, slug = slug, queue = queue, prompt_tokens = prompt_tokens,
  max_tokens = max_tokens, cost_mwt = seen.cost_mwt, key_id = key_max_waiting > 0 and key_id or '',
  wanted_ms = job_record.wanted_until(deadline_ms, now_ms, start_within_ms), latest_us = latest_us,
  priority = priority })
if poll_grace_ms > 0 then
  redis.call('ZADD', k_polls, now_ms + poll_grace_ms, id)
end
if idem_digest ~= '' then
  redis.call('SET', idem, id .. ' ' .. body_digest, 'PX', ends_in_ms + ttl_s * 1000)
end
if supersede_digest ~= '' then
  redis.call('SET', supersede, id, 'PX', ends_in_ms)
end
index.index_job(tenant, id, ends_in_ms + ttl_s * 1000)
tenant_bytes.keep_offered(tenant, asked.bytes, ends_in_ms + ttl_s * 1000)
redis.call('ZADD', k_tenants, now_ms, tenant)
redis.call('HSETNX', k_tenant .. tenant, 'first_ms', now_ms)
if verdict.rates.rpm_ms then
  redis.call('HSET', k_tenant .. tenant, 'rpm_ms', math.floor(verdict.rates.rpm_ms))
end
if verdict.rates.tpm_ms then
  redis.call('HSET', k_tenant .. tenant, 'tpm_ms', math.floor(math.min(verdict.rates.tpm_ms, now_ms
    + facts.MAX_DEBT_MS)))
end
if verdict.key_rates and next(verdict.key_rates) then
  local rpm_ms = math.floor(verdict.key_rates.rpm_ms or 0)
  local tpm_ms = math.floor(math.min(verdict.key_rates.tpm_ms or 0, now_ms + facts.MAX_DEBT_MS))
  redis.call('HSET', k_key_rates .. key_id, 'rpm_ms', rpm_ms, 'tpm_ms', tpm_ms)
  redis.call('PEXPIRE', k_key_rates .. key_id, math.max(rpm_ms, tpm_ms) - now_ms + 60000)
end
if not redis.call('HGET', k_tenant .. tenant, 'policy') then
  -- The record counts the tenant's inflight jobs, so it must exist for longer than the longest deadline that a
  -- request can name, which is 24 hours. It expires an hour after that.
  redis.call('EXPIRE', k_tenant .. tenant, ttl_s + 86400 + 3600)
end
redis.call('ZADD', k_queues, deadline_ms + ttl_s * 1000, queue)
doorbell.ring(slug, tenant, prefix)
hint.book_taken(asked, seen, verdict, attempt)
stats.count('admitted')
stats.count('admitted|' .. label)
history.count_in_history(tenant, slug, 'admitted', 1)
if fewer then
  stats.count('degraded|' .. label .. '|passages')
end
return { 'admitted', id, 0, rank + 1, seen.inflight + 1, now_ms, job_record.tokens_before(queue, rank), model,
  prompt_tokens, max_tokens, deadline_in_ms, verdict.eta_ms and math.floor(now_ms + verdict.eta_ms) or '', why or '',
  seen.is_private and 1 or 0, fewer or '' }
