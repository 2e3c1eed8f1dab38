-- facts: reads what the store says about a request in a pool: of the system, of its tenant and of the pool.
-- KEYS inflight books tenant active key_rates key_jobs
-- USES clock settings schema pool_record groups lengths tenant_bytes generated_weight spending priority
-- USES budget service loadable

-- Unless PENSTOCK_MAX_TENANT_BYTES is set, one tenant's jobs may take this part of the store's memory: a quarter, so
-- that three tenants that fill theirs still leave room for the others.
local TENANT_PART = 4
-- An empty pool whose last job succeeded longer ago than this admits a job whatever the prediction says.
local UNPROVEN_MS = 60000
-- A tenant's rates are per minute, and a burst may use a whole minute's amount at once.
local RATE_WINDOW_MS = 60000
-- A job uses up a tenant's tokens for this long at most. A stored time further ahead was not written by admission.
local MAX_DEBT_MS = 7 * 86400000

-- While the pool's rates are unknown, a tenant may have at least this much work queued: 65,536 weighted tokens.
local LEAST_WORK_MWT = 65536000

-- Returns the times of an owner's last use of its rates, from their stored forms.
local function rate_times(stored)
  return number(stored.rpm_ms, 0, 0, now_ms + 2 * RATE_WINDOW_MS), number(stored.tpm_ms, 0, 0, now_ms + MAX_DEBT_MS)
end

-- Returns the API key that a request names, with its bounds, or nil for none. A bound of 0 is no bound.
local function asked_key(id, rpm, tpm, max_waiting)
  return id ~= '' and { id = id, rpm = rpm > 0 and rpm or nil, tpm = tpm > 0 and tpm or nil,
    max_waiting = max_waiting > 0 and max_waiting or nil } or nil
end

-- Returns the bounds of an API key and how much of them is used. The jobs in the key's set that should have ended by
-- now are not counted: their records are gone.
local function key_in_use(key)
  local rpm_ms, tpm_ms = rate_times(read_fields(k_key_rates .. key.id, { 'rpm_ms', 'tpm_ms' }))
  return { id = key.id, rpm = key.rpm, tpm = key.tpm, max_waiting = key.max_waiting, rpm_ms = rpm_ms, tpm_ms = tpm_ms,
    waiting = key.max_waiting and redis.call('ZCOUNT', k_key_jobs .. key.id, now_ms, '+inf') or 0 }
end

-- Adds to `seen` the lengths that the answer is expected to have, and the job's cost unless the caller has given it.
local function expect_answer(asked, seen, own, pool)
  local max_tokens, candidates = asked.max_tokens, asked.candidates
  local longest = max_tokens / candidates
  local function length(of_tenant, of_pool)
    return lengths.length_of(own.len_n, of_tenant, pool.len_n, of_pool, max_tokens, candidates)
  end
  seen.median_tokens = length(own.len_p50, pool.len_p50)
  -- A tenant with few known answers is not expected to get shorter answers than most tenants.
  seen.short_tokens = math.min(seen.median_tokens, length(own.len_p35, math.max(lengths.USUAL_LENGTH,
    number(pool.len_p35, 0))))
  local expected = length(lengths.mean_length(own.len_mean, own.len_tail, longest), lengths.mean_length(pool.len_mean,
    pool.len_tail, longest))
  seen.cost_mwt = asked.cost_mwt >= 0 and asked.cost_mwt
    or math.floor(1000 * asked.prompt_tokens + seen.generated_weight_milli * expected)
  seen.mean_mwt = number(pool.mean_mwt, nil, 0) or seen.cost_mwt
end

-- Returns the largest work in mwt that the owner may have queued for the pool if PENSTOCK_MAX_QUEUE_TOKENS is `auto`,
-- or nil if a later check bounds it. The bound is on expected work and not on requested tokens: most clients ask for a
-- much larger `max_tokens` than their answers are long. `active` owners have jobs queued for the pool.
local function max_work_of(seen, active)
  if not seen.has_rates then
    -- The bound on the number of queued jobs, if they cost as much as the mean job.
    return math.max(LEAST_WORK_MWT, (seen.group or seen).max_waiting * seen.mean_mwt)
  end
  if seen.full_admission then
    -- check_share allows the tenant its part of the free backlog, which is less than either of the two values below.
    return nil
  end
  return math.max(seen.max_wait_ms * seen.mu,
    2 * active * seen.mean_mwt * seen.weight_milli / seen.total_weight_milli)
end

-- Returns what the checks need. Where an owner is counted, it is the tenant or, for one with a group, the group
-- (lib/fairness/groups.lua), whose tenant is then the `member`. Other files add fields:
--   groups: unit, member and group, and the group's figures in place of the tenant's
--   assess: replaced_slug and replaced_mwt, of the superseded job; it subtracts that job from the figures
--   reservation: reservation, is_early, is_due, due
--   return_room: room, room_mwt, room_changed
--   hint: is_proxys_repeat
local function look(asked)
  local slug, is_batch = asked.slug, asked.is_batch
  local set = settings.read_settings({ 'max_inflight', 'max_queue_size', 'max_queue_tokens', 'live_slots',
    'live_places', 'loadable_ms', 'admission', 'generated_weight', 'max_wait_ms', 'admission_safety_margin',
    'degradation', 'max_tenant_bytes', 'store_bytes', 'fairness', 'draining', 'schema_oldest' })
  local own = read_fields(k_tenant .. asked.tenant, { 'waiting', 'waiting_tokens', 'policy_max_waiting',
    'policy_max_waiting_tokens', 'policy_weight_milli', 'policy_rpm', 'policy_tpm', 'rpm_ms', 'tpm_ms', 'b|' .. slug,
    'len_n', 'len_mean', 'len_p50', 'len_p35', 'w|' .. slug, 'policy_max_bytes', 'n|' .. slug, 'policy_group',
    'g|' .. slug, 'policy_private', 'bn|' .. slug, 'bb|' .. slug, 'len_tail', 'budget', 'budget_elsewhere',
    'policy_tokens_per_day', 'policy_tokens_per_month', 'policy_prompt_weight_milli', 'policy_answer_weight_milli' })
  local pool = read_fields(k_books .. slug, { 'slots', 'running', 'waiting_mwt', 'weight_milli', 'mean_mwt', 'run_ms',
    'mu_wtps', 'prefill_tps', 'tpot_ms', 'rates_ms', 'len_n', 'len_mean', 'len_p50', 'waiting', 'succeeded_ms',
    'generated_weight_milli', 'policy_local', 'policy_prompt_price_micro', 'policy_answer_price_micro',
    'policy_day_cap_micro', 'batch_mwt', 'batch_weight_milli', 'len_tail', 'len_p35', 'drained_ms', 'running_tokens',
    'running_mwt', 'claims_from_ms', 'loadable_slots', 'load_failures',
    'load_retry_ms' })
  local kept = tenant_bytes.read_kept(asked.tenant)
  local rpm_ms, tpm_ms = rate_times(own)
  local active = is_batch and priority.owners_with_jobs(slug, '') or redis.call('ZCARD', k_active .. slug)
  local inflight, running = redis.call('ZCARD', k_inflight), number(pool.running, 0, 0)
  local pool_mwt = number(pool.waiting_mwt, 0, 0)
  local main_mwt = priority.counted_work(false, pool_mwt, number(pool.batch_mwt, 0, 0))
  local max_queue_size = set.max_queue_size or math.max(16, 2 * set.live_slots)
  local seen = { draining = set.draining == '1' or schema.is_outdated(set.schema_oldest),
    full_admission = set.admission == 'full', counts_turns = set.fairness == 'turns', max_wait_ms = set.max_wait_ms,
    busy_margin = set.admission_safety_margin, live_slots = set.live_slots, inflight = inflight,
    max_inflight = set.max_inflight or math.max(64, 4 * set.live_slots, set.live_places),
    has_loadables = now_ms - number(set.loadable_ms, 0, 0, now_ms) <= LIVE_MS,
    key = asked.key and key_in_use(asked.key),
    -- The tenant.
    unit = asked.tenant, waiting = number(own.waiting, 0, 0), waiting_tokens = number(own.waiting_tokens, 0, 0),
    max_waiting = settings.integer_setting(own.policy_max_waiting, nil, 1) or max_queue_size,
    max_waiting_tokens = settings.integer_setting(own.policy_max_waiting_tokens, nil, 1) or set.max_queue_tokens,
    live_bytes = kept.live, ended_bytes = kept.ended, expires_s = kept.first_s,
    max_bytes = number(own.policy_max_bytes, nil, 1) or set.max_tenant_bytes
      or set.store_bytes and math.floor(set.store_bytes / TENANT_PART),
    rpm = settings.integer_setting(own.policy_rpm, nil, 1), tpm = settings.integer_setting(own.policy_tpm, nil, 1),
    rpm_ms = rpm_ms, tpm_ms = tpm_ms, is_private = asked.is_private or own.policy_private == '1',
    budgets = { budget.open_budget(asked.tenant, own) },
    -- The pool.
    is_local = pool.policy_local == '1', slots = loadable.slots_with_loadable(pool), running = running,
    drained_ms = number(pool.drained_ms, nil, 0, now_ms), running_tokens = number(pool.running_tokens, 0, 0),
    load_failures = number(pool.load_failures, 0, 0), load_retry_in_ms = loadable.ms_to_load_retry(pool),
    -- How long it takes until the pool's model is loaded; 0 if a worker holds it.
    load_ms = math.max(0, number(pool.claims_from_ms, 0, 0) - now_ms),
    running_mwt = number(pool.running_mwt, 0, 0), main_mwt = main_mwt, pool_mwt = is_batch and pool_mwt or main_mwt,
    pool_inflight = math.min(inflight, running + number(pool.waiting, 0, 0)), owners_before = active,
    is_probe = active == 0 and running == 0 and now_ms - number(pool.succeeded_ms, 0, 0, now_ms) > UNPROVEN_MS,
    run_ms = number(pool.run_ms, nil, 0), mu = number(pool.mu_wtps, 0), prefill_tps = number(pool.prefill_tps, 0),
    tpot_ms = number(pool.tpot_ms, 0),
    generated_weight_milli = generated_weight.weight_of_pool(set.generated_weight, pool.generated_weight_milli) }
  spending.add_terms(seen, pool)
  seen.has_rates = seen.mu > 0 and seen.prefill_tps > 0 and seen.tpot_ms > 0
    and now_ms - number(pool.rates_ms, 0) <= pool_record.RATES_MS
  expect_answer(asked, seen, own, pool)
  local counted_milli = groups.count_owner(asked, seen, own)
  local is_listed = number(own['w|' .. slug], nil, 1)
  local group = is_listed and service.group_in(own['g|' .. slug]) or service.group_named(own.policy_group)
  if group ~= '' then
    counted_milli = groups.look_at_group(asked, seen, group, max_queue_size, set.max_queue_tokens)
  end
  -- The sum of the weights of all owners with queued jobs that count, this one included.
  seen.total_weight_milli = number(pool.weight_milli, 0, 0) + (is_batch and number(pool.batch_weight_milli, 0, 0) or 0)
    + (counted_milli and 0 or seen.weight_milli)
  -- The largest backlog is the work that the pool can do in PENSTOCK_MAX_WAIT_MS, but at least twice the mean cost of a
  -- job for each tenant with queued jobs.
  seen.max_backlog_mwt = math.max(seen.max_wait_ms * seen.mu, 2 * active * seen.mean_mwt)
  seen.max_work_mwt = not (seen.group or seen).max_waiting_tokens and max_work_of(seen, active) or nil
  -- The pool has a tier only while its rates are known. The caller then sets that of the verdict: admit updates the
  -- stored tier, quote only reads it.
  seen.degradation_on = set.degradation == 'on' and seen.full_admission
  seen.has_tier = seen.degradation_on and seen.has_rates
  return seen
end
