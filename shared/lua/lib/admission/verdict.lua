-- verdict: the checks of admission, one function each, in the order in which they run; writes nothing.
-- KEYS inflight pool books tenant active key_rates key_jobs
-- USES clock settings schema pool_record work_time places groups lengths tier eta tenant_bytes return_room
-- USES tenant_work generated_weight spending priority budget capacity service

-- A tenant with no queued jobs is admitted until the pool's queued work exceeds the largest backlog times this factor.
local BACKLOG_SLACK = 1.25
-- Unless PENSTOCK_MAX_TENANT_BYTES is set, one tenant's jobs may take this part of the store's memory: a quarter, so
-- that three tenants that fill theirs still leave room for the others.
local TENANT_PART = 4
-- An empty pool whose last job succeeded longer ago than this admits a job whatever the prediction says.
local UNPROVEN_MS = 60000
-- A tenant's rates are per minute, and a burst may use a whole minute's amount at once.
local RATE_WINDOW_MS = 60000
-- A job uses up a tenant's tokens for this long at most. A stored time further ahead was not written by admission.
local MAX_DEBT_MS = 7 * 86400000

-- Returns the bounds of an API key and how much of them is used; nil if the key has no bounds. A bound of 0 is no
-- bound. The jobs in the key's set that should have ended by now are not counted: their records are gone.
local function key_bounds(id, rpm, tpm, max_waiting)
  if id == '' then
    return nil
  end
  local used = read_fields(k_key_rates .. id, { 'rpm_ms', 'tpm_ms' })
  return { id = id, rpm = rpm > 0 and rpm or nil, tpm = tpm > 0 and tpm or nil,
    rpm_ms = number(used.rpm_ms, 0, 0, now_ms + 2 * RATE_WINDOW_MS), tpm_ms = number(used.tpm_ms, 0, 0, now_ms
    + MAX_DEBT_MS), max_waiting = max_waiting > 0 and max_waiting or nil,
    waiting = max_waiting > 0 and redis.call('ZCOUNT', k_key_jobs .. id, now_ms, '+inf') or 0 }
end

-- Adds to `request` everything that the checks need: settings, the tenant's record and the pool record.
local function look(request)
  local draining, max_inflight, max_queue_size, max_queue_tokens, live_slots, live_places, admission, generated_weight,
    max_wait_ms, margin, degradation, schema_oldest, max_tenant_bytes, store_bytes = settings.read_settings('draining',
    'max_inflight', 'max_queue_size', 'max_queue_tokens', 'live_slots', 'live_places', 'admission', 'generated_weight',
    'max_wait_ms', 'admission_safety_margin', 'degradation', 'schema_oldest', 'max_tenant_bytes', 'store_bytes')
  local tenant_fields = read_fields(k_tenant .. request.tenant, { 'waiting', 'waiting_tokens', 'policy_max_waiting',
    'policy_max_waiting_tokens', 'policy_weight_milli', 'policy_rpm', 'policy_tpm', 'rpm_ms', 'tpm_ms',
    'b|' .. request.slug, 'len_n', 'len_mean', 'len_p50', 'len_p35', 'w|' .. request.slug, 'policy_max_bytes',
    'n|' .. request.slug, 'policy_group', 'g|' .. request.slug, 'policy_private', 'bn|' .. request.slug,
    'bb|' .. request.slug, 'len_tail', 'budget', 'policy_tokens_per_day', 'policy_tokens_per_month',
    'policy_prompt_weight_milli', 'policy_answer_weight_milli' })
  local pool_fields = read_fields(k_books .. request.slug, { 'slots', 'running', 'waiting_mwt', 'weight_milli',
    'mean_mwt', 'run_ms', 'mu_wtps', 'prefill_tps', 'tpot_ms', 'rates_ms', 'len_n', 'len_mean', 'len_p50', 'waiting',
    'succeeded_ms', 'generated_weight_milli', 'policy_local', 'policy_prompt_price_micro', 'policy_answer_price_micro',
    'policy_day_cap_micro', 'batch_mwt', 'batch_weight_milli', 'len_tail', 'len_p35', 'drained_ms', 'running_tokens',
    'running_mwt' })
  local is_batch = request.is_batch
  local active = is_batch and priority.owners_with_jobs(request.slug, '') or redis.call('ZCARD', k_active
    .. request.slug)
  request.draining = draining == '1' or schema.is_outdated(schema_oldest)
  request.full_admission = admission == 'full'
  request.max_inflight = max_inflight or math.max(64, 4 * live_slots, live_places)
  max_queue_size = max_queue_size or math.max(16, 2 * live_slots)
  request.max_waiting = settings.integer_setting(tenant_fields.policy_max_waiting, nil, 1) or max_queue_size
  request.max_waiting_tokens = settings.integer_setting(tenant_fields.policy_max_waiting_tokens, nil, 1)
    or max_queue_tokens
  request.inflight = redis.call('ZCARD', k_inflight)
  request.waiting, request.waiting_tokens = number(tenant_fields.waiting, 0, 0), number(tenant_fields.waiting_tokens,
    0, 0)
  request.live_bytes, request.ended_bytes, request.expires_s = tenant_bytes.read_kept(request.tenant)
  request.max_bytes = number(tenant_fields.policy_max_bytes, nil, 1) or max_tenant_bytes
    or store_bytes and math.floor(store_bytes / TENANT_PART)
  -- If the tenant has queued jobs, use the weight that was added to the pool's sum of weights. With a different weight,
  -- the tenant's share could exceed the whole pool.
  local listed_milli = number(tenant_fields['w|' .. request.slug], nil, 1)
  local jobs, batch_jobs = number(tenant_fields['n|' .. request.slug], 0, 0), number(tenant_fields['bn|'
    .. request.slug], 0, 0)
  local counted_milli = (is_batch or batch_jobs == 0 or jobs > batch_jobs) and listed_milli or nil
  request.weight_milli = counted_milli or pool_record.weight_in(tenant_fields.policy_weight_milli)
  request.rpm, request.tpm = settings.integer_setting(tenant_fields.policy_rpm, nil, 1),
    settings.integer_setting(tenant_fields.policy_tpm, nil, 1)
  request.rpm_ms = number(tenant_fields.rpm_ms, 0, 0, now_ms + 2 * RATE_WINDOW_MS)
  request.tpm_ms = number(tenant_fields.tpm_ms, 0, 0, now_ms + MAX_DEBT_MS)
  request.tenant_mwt = priority.counted_work(is_batch, number(tenant_fields['b|' .. request.slug], 0, 0),
    number(tenant_fields['bb|' .. request.slug], 0, 0))
  request.waiting_here = priority.counted_work(is_batch, jobs, batch_jobs)
  request.is_private, request.is_local = request.is_private or tenant_fields.policy_private == '1',
    pool_fields.policy_local == '1'
  request.prompt_price, request.answer_price = settings.integer_setting(pool_fields.policy_prompt_price_micro, 0, 0,
    spending.MAX_AMOUNT), settings.integer_setting(pool_fields.policy_answer_price_micro, 0, 0, spending.MAX_AMOUNT)
  -- A cap that another program has spoiled allows nothing.
  request.day_cap = pool_fields.policy_day_cap_micro and settings.integer_setting(pool_fields.policy_day_cap_micro, 0,
    0, spending.MAX_AMOUNT) or nil
  request.budgets = { budget.open_budget(request.tenant, tenant_fields) }
  request.unit = request.tenant
  local group = listed_milli and service.group_in(tenant_fields['g|' .. request.slug])
    or service.group_named(tenant_fields.policy_group)
  if group ~= '' then
    counted_milli = groups.look_at_group(request, group, max_queue_size, max_queue_tokens)
  end

  request.slots, request.running = number(pool_fields.slots, 0, 0), number(pool_fields.running, 0, 0)
  request.drained_ms = number(pool_fields.drained_ms, nil, 0, now_ms)
  request.running_tokens, request.running_mwt = number(pool_fields.running_tokens, 0, 0),
    number(pool_fields.running_mwt, 0, 0)
  local pool_mwt = number(pool_fields.waiting_mwt, 0, 0)
  request.main_mwt = priority.counted_work(false, pool_mwt, number(pool_fields.batch_mwt, 0, 0))
  request.pool_mwt, request.live_slots = is_batch and pool_mwt or request.main_mwt, live_slots
  request.pool_inflight = math.min(request.inflight, request.running + number(pool_fields.waiting, 0, 0))
  request.owners_before = active
  request.is_probe = active == 0 and request.running == 0
    and now_ms - number(pool_fields.succeeded_ms, 0, 0, now_ms) > UNPROVEN_MS
  -- The sum of the weights of all tenants with queued jobs that count, this tenant included.
  request.total_weight_milli = number(pool_fields.weight_milli, 0, 0) + (is_batch
    and number(pool_fields.batch_weight_milli, 0, 0) or 0)
    + (counted_milli and 0 or request.weight_milli)
  request.mean_mwt, request.run_ms = number(pool_fields.mean_mwt, nil, 0), number(pool_fields.run_ms, nil, 0)
  request.mu = number(pool_fields.mu_wtps, 0)
  request.prefill_tps, request.tpot_ms = number(pool_fields.prefill_tps, 0), number(pool_fields.tpot_ms, 0)
  request.has_rates = request.mu > 0 and request.prefill_tps > 0 and request.tpot_ms > 0
    and now_ms - number(pool_fields.rates_ms, 0) <= pool_record.RATES_MS

  local tenant_n, pool_n, max_tokens, candidates = tenant_fields.len_n, pool_fields.len_n, request.max_tokens,
    request.candidates or 1
  local longest = max_tokens / candidates
  local expected = lengths.length_of(tenant_n, lengths.mean_length(tenant_fields.len_mean, tenant_fields.len_tail,
    longest), pool_n, lengths.mean_length(pool_fields.len_mean, pool_fields.len_tail, longest), max_tokens, candidates)
  request.median_tokens = lengths.length_of(tenant_n, tenant_fields.len_p50, pool_n, pool_fields.len_p50, max_tokens,
    candidates)
  -- A tenant with few known answers is not expected to get shorter answers than most tenants.
  request.short_tokens = math.min(request.median_tokens, lengths.length_of(tenant_n, tenant_fields.len_p35, pool_n,
    math.max(lengths.USUAL_LENGTH, number(pool_fields.len_p35, 0)), max_tokens, candidates))
  request.generated_weight_milli = generated_weight.weight_of_pool(generated_weight, pool_fields.generated_weight_milli)
  if request.cost_mwt < 0 then
    request.cost_mwt = math.floor(1000 * request.prompt_tokens + request.generated_weight_milli * expected)
  end
  request.mean_mwt = request.mean_mwt or request.cost_mwt
  request.max_wait_ms = max_wait_ms
  -- The largest backlog is the work that the pool can do in PENSTOCK_MAX_WAIT_MS, but at least twice the mean cost of a
  -- job for each tenant with queued jobs.
  request.max_backlog_mwt = math.max(request.max_wait_ms * request.mu, 2 * active * request.mean_mwt)
  request.max_work_mwt = not (request.group or request).max_waiting_tokens and tenant_work.max_work_of(request, active)
    or nil
  request.busy_margin = margin
  -- The pool has a tier only while its rates are known. The caller then sets `request.tier`: admit updates the stored
  -- tier, quote only reads it.
  request.degradation_on = degradation == 'on' and request.full_admission
  request.has_tier, request.tier = request.degradation_on and request.has_rates, 0
end

-- A private request is admitted only by pools that an operator has marked as local. No retry can change that.
local function check_private(request)
  if request.is_private and not request.is_local then
    return { 'no_suitable_pool', 'private', 1, 0, 0, 1 }
  end
end

local function check_worker(request)
  if redis.call('ZCOUNT', k_pool .. request.slug, now_ms - LIVE_MS, '+inf') == 0 then
    return { 'no_worker', 'live_workers', 0, 1, 2000 }
  elseif request.draining or request.drained_ms and now_ms - request.drained_ms < LIVE_MS then
    return { 'draining', 'draining', 1, 0, 5000 }
  end
end

-- Checks two rates with the generic cell rate algorithm (GCRA). `used` is the request, for the rates of its tenant, or
-- the bounds of its API key. Each `next_…_ms` is the time at which the rate alone would have allowed all jobs admitted
-- so far and this job.
local function check_rates(used, tokens, prefix)
  used.next_rpm_ms = used.rpm and math.max(used.rpm_ms, now_ms) + RATE_WINDOW_MS / used.rpm
  used.next_tpm_ms = used.tpm and math.max(used.tpm_ms, now_ms) + RATE_WINDOW_MS * tokens / used.tpm
  if used.next_rpm_ms and used.next_rpm_ms > now_ms + RATE_WINDOW_MS then
    return { 'rate_limited', prefix .. 'requests_per_minute', used.rpm, used.rpm,
      used.next_rpm_ms - now_ms - RATE_WINDOW_MS }
  end
  -- A job of any size is allowed once the rate covers all earlier jobs.
  if used.next_tpm_ms and used.tpm_ms > now_ms and used.next_tpm_ms > now_ms + RATE_WINDOW_MS then
    return { 'rate_limited', prefix .. 'tokens_per_minute', used.tpm, used.tpm,
      math.min(used.tpm_ms - now_ms, used.next_tpm_ms - now_ms - RATE_WINDOW_MS) }
  end
end

local function check_all_rates(request)
  local tokens = request.prompt_tokens + request.max_tokens
  return check_rates(request, tokens, '') or request.key and check_rates(request.key, tokens, 'key_') or nil
end

-- Checks the bound on inflight jobs, and the pool's places within it. The last quarter of the places is kept for
-- tenants with little queued work. Otherwise, one tenant could fill all places, and the jobs of all other tenants would
-- be refused.
local function check_inflight(request)
  local places = math.max(0, places.places_in_pool(request))
  local kept = request.full_admission and math.floor(places / 4) or 0
  if request.pool_inflight >= (places.is_kept_for(request, kept) and places or places - kept) then
    -- If there are fewer places than slots in the pool, only a part of the slots can be in use.
    local base_ms = work_time.drain_ms(request, request.mean_mwt) / math.min(1, math.max(1, places) / math.max(1,
      request.slots))
    if request.inflight < request.max_inflight and request.slots < request.live_slots then
      return { 'inflight_full', 'pool_inflight', request.pool_inflight, places, base_ms }
    end
    return { 'inflight_full', 'inflight', request.inflight, request.max_inflight, base_ms }
  end
end

-- Checks the bounds on the queued jobs of a tenant or a group.
local function check_list(request, owner, prefix)
  if owner.waiting >= owner.max_waiting then
    return { 'tenant_queue_full', prefix .. 'waiting_jobs', owner.waiting, owner.max_waiting,
      work_time.drain_ms(request, request.mean_mwt, true) }
  end
  local tokens = request.prompt_tokens + request.max_tokens
  if owner.max_waiting_tokens and owner.waiting > 0 and owner.waiting_tokens + tokens > owner.max_waiting_tokens then
    return { 'tenant_tokens_full', prefix .. 'waiting_tokens', owner.waiting_tokens, owner.max_waiting_tokens,
      work_time.drain_ms(request, request.cost_mwt, true) }
  end
end

local function check_lists(request)
  local key = request.key
  if key and key.max_waiting and key.waiting >= key.max_waiting then
    return { 'tenant_queue_full', 'key_waiting_jobs', key.waiting, key.max_waiting,
      work_time.drain_ms(request, request.mean_mwt, true) }
  end
  local refusal = check_list(request, request, 'tenant_')
    or request.group and check_list(request, request.group, 'group_') or nil
  local work_mwt = request.tenant_mwt + request.cost_mwt
  if not refusal and not request.idle and request.max_work_mwt and request.tenant_mwt > 0
    and work_mwt > request.max_work_mwt then
    return { 'tenant_tokens_full', 'tenant_waiting_work', math.floor(request.tenant_mwt / 1000),
      math.floor(request.max_work_mwt / 1000), work_time.drain_ms(request, work_mwt - request.max_work_mwt, true) }
  end
  return refusal
end

-- Checks the bytes that the tenant's jobs take in the store. A tenant that takes none is not refused, whatever the job
-- takes: the limits on a body's size and on an answer's length bound that.
local function check_bytes(request)
  local kept = request.live_bytes + request.ended_bytes
  if request.max_bytes and kept > 0 and kept + request.bytes > request.max_bytes then
    return { 'tenant_bytes_full', 'tenant_bytes', kept, request.max_bytes,
      request.expires_s and request.expires_s * 1000 - now_ms or work_time.drain_ms(request, request.mean_mwt, true) }
  end
end

-- Applies the dynamic threshold of Choudhury and Hahne (1998): the work that a tenant may have queued shrinks as the
-- pool fills. At the highest tier, tenants whose queued work exceeds their share are refused.
local function check_share(request)
  local most = return_room.alpha_of(request) * request.weight_milli / request.total_weight_milli
    * (request.max_backlog_mwt - request.pool_mwt)
  if request.tier == tier.HIGHEST_TIER and not eta.is_under_share(request) then
    most = math.min(most, request.weight_milli / request.total_weight_milli * request.pool_mwt)
  end
  if request.tenant_mwt > 0 and request.tenant_mwt + request.cost_mwt > most then
    return { 'tenant_share_full', 'tenant_waiting_work', math.floor(request.tenant_mwt / 1000),
      math.floor(math.max(0, most) / 1000),
      work_time.drain_ms(request, request.tenant_mwt + request.cost_mwt - most, true) }
  end
end

-- Checks the pool's backlog. Only tenants with no queued jobs can fail this check, because check_share refuses all
-- others before the backlog is full.
local function check_backlog(request)
  local most = BACKLOG_SLACK * request.max_backlog_mwt
  if request.pool_mwt > most then
    return { 'backlog_full', 'waiting_work', math.floor(request.pool_mwt / 1000),
      math.floor(request.max_backlog_mwt / 1000), work_time.drain_ms(request, request.pool_mwt - most) }
  end
end

-- A deadline that the client did not name allows for this many times the predicted time to compute the answer, and a
-- start deadline for as many times that of the prompt: a slow pool would otherwise refuse jobs that nobody asked to be
-- quick.
local DEFAULT_TIMES = 2

local function prompt_ms_of(request)
  return 1000 * request.prompt_tokens / request.prefill_tps
end

-- Extends the deadlines that the client did not name.
local function extend_defaults(request)
  if not request.has_rates or request.longest_in_ms == 0 then
    return
  end
  local longest_ms = math.min(request.longest_in_ms, math.ceil(DEFAULT_TIMES * request.compute_ms))
  request.deadline_in_ms = math.max(request.deadline_in_ms, longest_ms)
  if request.start_within_ms > 0 and not request.start_named then
    local start_ms = math.min(request.deadline_in_ms, math.ceil(DEFAULT_TIMES * prompt_ms_of(request)))
    request.start_within_ms = math.max(request.start_within_ms, start_ms)
  end
end

-- The jobs of a pool correct its rates. Rates that were measured while the machine was short of time could refuse every
-- job, and would then never be corrected, so a job that the pool can probe its rates with is not refused.
local function check_deadline(request)
  if request.is_probe then
    return nil
  end
  local most, start_most = request.margin * request.deadline_in_ms, request.margin * request.start_within_ms
  local prompt_ms = prompt_ms_of(request)
  local wait_ms, ends_ms, excess_ms = request.start_ms - prompt_ms, request.finish_ms, request.finish_ms - most
  -- An answer that is cut fits the time that is left. A tenant within its share is not refused for a risk that is due
  -- to the work of others.
  if (request.degrade == 0 or request.tier == 0) and not eta.is_under_share(request) then
    -- A job may wait as long as a long answer (the 90th percentile) is still in time. Without this bound, most broken
    -- promises were those of jobs with long answers that had waited for more than half of their time. Where a long
    -- answer is late even without a wait, the bound would refuse all jobs, so .3 of the time that a median answer
    -- leaves is allowed.
    local longest_wait_ms = math.max(request.deadline_in_ms - request.long_ms, 0.3 * (most - request.compute_ms))
    local waits_too_long_ms = wait_ms - longest_wait_ms
    if excess_ms <= 0 and waits_too_long_ms > 0 then
      ends_ms, most = wait_ms + request.long_ms, request.deadline_in_ms
    end
    excess_ms = math.max(excess_ms, waits_too_long_ms)
  end
  local start_excess_ms = request.start_within_ms > 0 and request.start_ms - start_most or -1
  -- If even an empty system could not meet the deadline, a retry cannot succeed.
  local ends_never = request.compute_ms > request.deadline_in_ms
  local starts_never = request.start_within_ms > 0 and prompt_ms > request.start_within_ms
  local infeasible = (ends_never or starts_never) and 1 or 0
  if excess_ms > 0 and (ends_never or not starts_never) then
    return { 'deadline_unmeetable', 'predicted_ms', math.floor(ends_ms), math.floor(most),
      math.max(excess_ms, start_excess_ms), infeasible }
  elseif start_excess_ms > 0 then
    return { 'deadline_unmeetable', 'predicted_start_ms', math.floor(request.start_ms), math.floor(start_most),
      math.max(excess_ms, start_excess_ms), infeasible }
  end
end

-- Runs the checks. Returns nil if all of them pass. Otherwise, returns the first refusal: its reason; the name, value
-- and bound of the quantity that was checked; the ms until a retry makes sense; and 1 if even an empty system could not
-- meet the deadline.
local function first_refusal(request)
  request.idle = capacity.fits_at_once(request)
  request.margin = request.idle and 1 or request.busy_margin
  request.compute_ms = request.has_rates and eta.compute_ms_of(request) or -1
  extend_defaults(request)
  local refusal = check_private(request) or check_worker(request) or check_all_rates(request)
    or spending.check_budget(request)
    or budget.check_token_budgets(request) or check_inflight(request) or check_lists(request) or check_bytes(request)
  if not refusal and request.has_rates then
    eta.predict(request)
    if request.degrade == 1 and request.tier > 0 and not request.idle then
      eta.shorten(request)
    end
    if request.full_admission then
      -- A job that fits into the free slots takes nothing from others, so no share of the queue bounds it.
      refusal = not request.idle and (check_share(request) or check_backlog(request)) or check_deadline(request)
    end
  end
  return refusal or return_room.check_room(request)
end
