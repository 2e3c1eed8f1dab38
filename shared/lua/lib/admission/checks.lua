-- checks: the checks of admission, one function each, in the order in which they run; writes nothing.
-- KEYS pool
-- USES clock facts work_time places tier eta return_room spending budget capacity

-- A tenant with no queued jobs is admitted until the pool's queued work exceeds the largest backlog times this factor.
local BACKLOG_SLACK = 1.25

-- Returns a request in one pool: what is `asked`, which is never written; what the store has `seen` for it, which
-- facts.look returns; and the `verdict`, which follows from both. These are the fields of a verdict.
--   checks: idle, margin, deadline_in_ms and start_within_ms (after extend_defaults); rates and key_rates, the times at
--     which the rates of the tenant and of its API key would have allowed this job
--   assess, quote: tier
--   budget: hint_ms, resets_ms
--   eta: compute_ms (-1 while rates are unknown), eta_ms, early_ms, late_ms, start_ms, finish_ms, long_ms, prediction,
--     learned_class, learned_ms, slot_view, shortened
--   hint: booked_ms, wait_ms
local function open_request(asked)
  return { asked = asked, seen = nil, verdict = { tier = 0, compute_ms = -1, deadline_in_ms = asked.deadline_in_ms,
    start_within_ms = asked.start_within_ms } }
end

-- A check returns nil or a refusal: its `reason`; the name (`limit`), the `value` and the bound (`max`) of the quantity
-- that was checked; `base_ms`, the ms until a retry makes sense; and `is_hopeless` if even an empty system could not
-- meet the deadline, or `is_for_all` if every request to the pool would be refused for this reason.

-- A private request is admitted only by pools that an operator has marked as local. No retry can change that.
local function check_private(seen)
  if seen.is_private and not seen.is_local then
    return { reason = 'no_suitable_pool', limit = 'private', value = 1, max = 0, base_ms = 0, is_hopeless = true }
  end
end

local function check_worker(asked, seen)
  if redis.call('ZCOUNT', k_pool .. asked.slug, now_ms - LIVE_MS, '+inf') == 0 then
    return { reason = 'no_worker', limit = 'live_workers', value = 0, max = 1, base_ms = 2000 }
  elseif seen.draining or seen.drained_ms and now_ms - seen.drained_ms < LIVE_MS then
    return { reason = 'draining', limit = 'draining', value = 1, max = 0, base_ms = 5000 }
  elseif seen.load_retry_in_ms > 0 then
    return { reason = 'load_failed', limit = 'load_failures', value = seen.load_failures, max = 0,
      base_ms = seen.load_retry_in_ms }
  end
end

-- Returns the times at which two rates alone would have allowed all jobs admitted so far and this job, by the generic
-- cell rate algorithm (GCRA). `used` has the bounds of a tenant or of an API key, and what is used of them.
local function rates_after(used, tokens)
  return { rpm_ms = used.rpm and math.max(used.rpm_ms, now_ms) + facts.RATE_WINDOW_MS / used.rpm,
    tpm_ms = used.tpm and math.max(used.tpm_ms, now_ms) + facts.RATE_WINDOW_MS * tokens / used.tpm }
end

local function check_rates(used, after, prefix)
  local latest_ms = now_ms + facts.RATE_WINDOW_MS
  if after.rpm_ms and after.rpm_ms > latest_ms then
    return { reason = 'rate_limited', limit = prefix .. 'requests_per_minute', value = used.rpm, max = used.rpm,
      base_ms = after.rpm_ms - latest_ms }
  end
  -- A job of any size is allowed once the rate covers all earlier jobs.
  if after.tpm_ms and used.tpm_ms > now_ms and after.tpm_ms > latest_ms then
    return { reason = 'rate_limited', limit = prefix .. 'tokens_per_minute', value = used.tpm, max = used.tpm,
      base_ms = math.min(used.tpm_ms - now_ms, after.tpm_ms - latest_ms) }
  end
end

local function check_all_rates(asked, seen, verdict)
  local tokens = asked.prompt_tokens + asked.max_tokens
  verdict.rates = rates_after(seen, tokens)
  local refusal = check_rates(seen, verdict.rates, '')
  if refusal or not seen.key then
    return refusal
  end
  verdict.key_rates = rates_after(seen.key, tokens)
  return check_rates(seen.key, verdict.key_rates, 'key_')
end

-- Checks the bound on inflight jobs, and the pool's places within it. The last quarter of the places is kept for
-- tenants with little queued work. Otherwise, one tenant could fill all places, and the jobs of all other tenants would
-- be refused.
local function check_inflight(asked, seen, verdict)
  local places = math.max(0, places.places_in_pool(asked, seen))
  local kept = seen.full_admission and math.floor(places / 4) or 0
  if seen.pool_inflight >= (places.is_kept_for(asked, seen, verdict, kept) and places or places - kept) then
    -- If there are fewer places than slots in the pool, only a part of the slots can be in use.
    local base_ms = work_time.drain_ms(seen, seen.mean_mwt) / math.min(1, math.max(1, places) / math.max(1,
      seen.slots))
    local is_for_all = seen.pool_inflight >= places
    if seen.inflight < seen.max_inflight and not places.has_all_slots(seen) then
      return { reason = 'inflight_full', limit = 'pool_inflight', value = seen.pool_inflight, max = places,
        base_ms = base_ms, is_for_all = is_for_all }
    end
    return { reason = 'inflight_full', limit = 'inflight', value = seen.inflight, max = seen.max_inflight,
      base_ms = base_ms, is_for_all = is_for_all }
  end
end

-- Checks the bounds on the queued jobs of an owner, the tenant (`seen`) or its group.
local function check_list(asked, seen, owner, prefix)
  if owner.waiting >= owner.max_waiting then
    return { reason = 'tenant_queue_full', limit = prefix .. 'waiting_jobs', value = owner.waiting,
      max = owner.max_waiting, base_ms = work_time.drain_ms(seen, seen.mean_mwt, true) }
  end
  local tokens = asked.prompt_tokens + asked.max_tokens
  if owner.max_waiting_tokens and owner.waiting > 0 and owner.waiting_tokens + tokens > owner.max_waiting_tokens then
    return { reason = 'tenant_tokens_full', limit = prefix .. 'waiting_tokens', value = owner.waiting_tokens,
      max = owner.max_waiting_tokens, base_ms = work_time.drain_ms(seen, seen.cost_mwt, true) }
  end
end

local function check_lists(asked, seen, verdict)
  local key = seen.key
  if key and key.max_waiting and key.waiting >= key.max_waiting then
    return { reason = 'tenant_queue_full', limit = 'key_waiting_jobs', value = key.waiting, max = key.max_waiting,
      base_ms = work_time.drain_ms(seen, seen.mean_mwt, true) }
  end
  local refusal = check_list(asked, seen, seen, 'tenant_')
    or seen.group and check_list(asked, seen, seen.group, 'group_') or nil
  local work_mwt = seen.tenant_mwt + seen.cost_mwt
  if not refusal and not verdict.idle and seen.max_work_mwt and seen.tenant_mwt > 0
    and work_mwt > seen.max_work_mwt then
    return { reason = 'tenant_tokens_full', limit = 'tenant_waiting_work', value = math.floor(seen.tenant_mwt / 1000),
      max = math.floor(seen.max_work_mwt / 1000),
      base_ms = work_time.drain_ms(seen, work_mwt - seen.max_work_mwt, true) }
  end
  return refusal
end

-- Checks the bytes that the tenant's jobs take in the store. A tenant that takes none is not refused, whatever the job
-- takes: the limits on a body's size and on an answer's length bound that.
local function check_bytes(asked, seen)
  local kept = seen.live_bytes + seen.ended_bytes
  if seen.max_bytes and kept > 0 and kept + asked.bytes > seen.max_bytes then
    return { reason = 'tenant_bytes_full', limit = 'tenant_bytes', value = kept, max = seen.max_bytes,
      base_ms = seen.expires_s and seen.expires_s * 1000 - now_ms or work_time.drain_ms(seen, seen.mean_mwt, true) }
  end
end

-- Applies the dynamic threshold of Choudhury and Hahne (1998): the work that a tenant may have queued shrinks as the
-- pool fills. At the highest tier, tenants whose queued work exceeds their share are refused.
local function check_share(seen, verdict)
  local most = return_room.alpha_of(verdict) * seen.weight_milli / seen.total_weight_milli
    * (seen.max_backlog_mwt - seen.pool_mwt)
  if verdict.tier == tier.HIGHEST_TIER and not eta.is_under_share(seen) then
    most = math.min(most, seen.weight_milli / seen.total_weight_milli * seen.pool_mwt)
  end
  if seen.tenant_mwt > 0 and seen.tenant_mwt + seen.cost_mwt > most then
    return { reason = 'tenant_share_full', limit = 'tenant_waiting_work', value = math.floor(seen.tenant_mwt / 1000),
      max = math.floor(math.max(0, most) / 1000),
      base_ms = work_time.drain_ms(seen, seen.tenant_mwt + seen.cost_mwt - most, true) }
  end
end

-- Checks the pool's backlog. Only tenants with no queued jobs can fail this check, because check_share refuses all
-- others before the backlog is full.
local function check_backlog(seen)
  local most = BACKLOG_SLACK * seen.max_backlog_mwt
  if seen.pool_mwt > most then
    return { reason = 'backlog_full', limit = 'waiting_work', value = math.floor(seen.pool_mwt / 1000),
      max = math.floor(seen.max_backlog_mwt / 1000), base_ms = work_time.drain_ms(seen, seen.pool_mwt - most) }
  end
end

-- A deadline that the client did not name allows for this many times the predicted time to compute the answer, and a
-- start deadline for as many times that of the prompt: a slow pool would otherwise refuse jobs that nobody asked to be
-- quick.
local DEFAULT_TIMES = 2

local function prompt_ms_of(asked, seen)
  return 1000 * asked.prompt_tokens / seen.prefill_tps
end

-- Extends the deadlines that the client did not name, also by the time until the model is loaded.
local function extend_defaults(asked, seen, verdict)
  if not (seen.has_rates or seen.load_ms > 0) or asked.longest_in_ms == 0 then
    return
  end
  local function extended_ms(default_ms, compute_ms, longest_ms)
    local least_ms = math.max(default_ms, math.ceil(DEFAULT_TIMES * compute_ms))
    return math.max(default_ms, math.min(longest_ms, least_ms + seen.load_ms))
  end
  local compute_ms = seen.has_rates and verdict.compute_ms or 0
  verdict.deadline_in_ms = extended_ms(asked.deadline_in_ms, compute_ms, asked.longest_in_ms)
  if asked.start_within_ms > 0 and not asked.start_named then
    local prompt_ms = seen.has_rates and prompt_ms_of(asked, seen) or 0
    verdict.start_within_ms = extended_ms(asked.start_within_ms, prompt_ms, verdict.deadline_in_ms)
  end
end

-- The jobs of a pool correct its rates. Rates that were measured while the machine was short of time could refuse every
-- job, and would then never be corrected, so a job that the pool can probe its rates with is not refused.
local function check_deadline(asked, seen, verdict)
  if seen.is_probe then
    return nil
  end
  local most, start_most = verdict.margin * verdict.deadline_in_ms, verdict.margin * verdict.start_within_ms
  local prompt_ms = prompt_ms_of(asked, seen)
  local wait_ms, ends_ms, excess_ms = verdict.start_ms - prompt_ms, verdict.finish_ms, verdict.finish_ms - most
  -- An answer that is cut fits the time that is left. A tenant within its share is not refused for a risk that is due
  -- to the work of others.
  if (asked.degrade == 0 or verdict.tier == 0) and not eta.is_under_share(seen) then
    -- A job may wait as long as a long answer (the 90th percentile) is still in time. Without this bound, most broken
    -- promises were those of jobs with long answers that had waited for more than half of their time. Where a long
    -- answer is late even without a wait, the bound would refuse all jobs, so .3 of the time that a median answer
    -- leaves is allowed.
    local longest_wait_ms = math.max(verdict.deadline_in_ms - verdict.long_ms, 0.3 * (most - verdict.compute_ms))
    local waits_too_long_ms = wait_ms - longest_wait_ms
    if excess_ms <= 0 and waits_too_long_ms > 0 then
      ends_ms, most = wait_ms + verdict.long_ms, verdict.deadline_in_ms
    end
    excess_ms = math.max(excess_ms, waits_too_long_ms)
  end
  local start_excess_ms = verdict.start_within_ms > 0 and verdict.start_ms - start_most or -1
  -- If even an empty system could not meet the deadline, a retry cannot succeed.
  local ends_never = verdict.compute_ms > verdict.deadline_in_ms
  local starts_never = verdict.start_within_ms > 0 and prompt_ms > verdict.start_within_ms
  local refusal = { reason = 'deadline_unmeetable', base_ms = math.max(excess_ms, start_excess_ms),
    is_hopeless = ends_never or starts_never }
  if excess_ms > 0 and (ends_never or not starts_never) then
    refusal.limit, refusal.value, refusal.max = 'predicted_ms', math.floor(ends_ms), math.floor(most)
    return refusal
  elseif start_excess_ms > 0 then
    refusal.limit, refusal.value = 'predicted_start_ms', math.floor(verdict.start_ms)
    refusal.max = math.floor(start_most)
    return refusal
  end
end

-- A worker of several models sees within this time that a model is wanted.
local NOTICE_MS = 1000

-- Checks a job whose deadline is not compared with a prediction: it cannot begin before its model is loaded. The
-- refusal counts as a wish for the model, which is then loaded, so that the job is in time after the hint.
local function check_load(seen, verdict)
  local function refusal(limit, most_ms)
    return { reason = 'deadline_unmeetable', limit = limit, value = math.floor(seen.load_ms), max = math.floor(most_ms),
      base_ms = seen.load_ms - most_ms + NOTICE_MS }
  end
  if seen.load_ms >= verdict.deadline_in_ms then
    return refusal('predicted_ms', verdict.deadline_in_ms)
  elseif verdict.start_within_ms > 0 and seen.load_ms >= verdict.start_within_ms then
    return refusal('predicted_start_ms', verdict.start_within_ms)
  end
end

local function first_refusal(asked, seen, verdict)
  verdict.idle = capacity.fits_at_once(asked, seen)
  verdict.margin = verdict.idle and 1 or seen.busy_margin
  verdict.compute_ms = seen.has_rates and eta.compute_ms_of(asked, seen) or -1
  extend_defaults(asked, seen, verdict)
  local refusal = check_private(seen) or check_worker(asked, seen) or check_all_rates(asked, seen, verdict)
    or spending.check_budget(asked, seen) or budget.check_token_budgets(asked, seen, verdict)
    or check_inflight(asked, seen, verdict) or check_lists(asked, seen, verdict) or check_bytes(asked, seen)
  if not refusal and seen.has_rates then
    eta.predict(asked, seen, verdict)
    if asked.degrade == 1 and verdict.tier > 0 and not verdict.idle then
      eta.shorten(asked, seen, verdict)
    end
    if seen.full_admission then
      -- A job that fits into the free slots takes nothing from others, so no share of the queue bounds it.
      refusal = not verdict.idle and (check_share(seen, verdict) or check_backlog(seen))
        or check_deadline(asked, seen, verdict)
    end
  end
  if not refusal and seen.load_ms > 0 and seen.full_admission and (seen.is_probe or not seen.has_rates) then
    refusal = check_load(seen, verdict)
  end
  return refusal or return_room.check_room(asked, seen, verdict)
end
