-- verdict: the checks of admission, each a named part, in the order in which they are asked; writes nothing.
-- KEYS config inflight pool books tenant active
-- USES clock books lengths tier

-- What may wait of one tenant, to what is free: Choudhury and Hahne's alpha; and from tier 1 on.
local ALPHA, ALPHA_PRESSED = 1, 0.5
-- A tenant with nothing waiting may still come when the backlog is this full.
local BACKLOG_SLACK = 1.25
-- A tenant's rates are counted over a minute: so much may come at once.
local RATE_WINDOW_MS = 60000

-- Everything the checks need, read at once: settings, the tenant's and the pool's books.
local function look(ask)
  local set = redis.call('HMGET', k_config, 'draining', 'max_inflight', 'max_queue_size', 'max_queue_tokens', 'live_slots',
    'admission', 'generated_weight', 'max_wait_ms', 'admission_safety_margin', 'degradation')
  local has = redis.call('HMGET', k_tenant .. ask.tenant, 'waiting', 'waiting_tokens', 'policy_max_waiting',
    'policy_max_waiting_tokens', 'policy_weight_milli', 'policy_rpm', 'policy_tpm', 'rpm_ms', 'tpm_ms',
    'b|' .. ask.slug, 'len_n', 'len_mean', 'len_p50', 'len_p35', 'w|' .. ask.slug)
  local pool = redis.call('HMGET', k_books .. ask.slug, 'slots', 'running', 'waiting_mwt', 'weight_milli', 'mean_mwt', 'run_ms',
    'mu_wtps', 'prefill_tps', 'tpot_ms', 'rates_ms', 'len_n', 'len_mean', 'len_p50')
  local active = redis.call('ZCARD', k_active .. ask.slug)
  local live_slots = tonumber(set[5] or 0)
  ask.draining, ask.full = set[1] == '1', set[6] == 'full'
  ask.max_inflight = tonumber(set[2]) or math.max(64, 4 * live_slots)
  ask.max_waiting = tonumber(has[3]) or tonumber(set[3]) or math.max(16, 2 * live_slots)
  ask.max_waiting_tokens = tonumber(has[4]) or tonumber(set[4]) or 65536
  ask.inflight = redis.call('ZCARD', k_inflight)
  ask.waiting, ask.waiting_tokens = tonumber(has[1] or 0), tonumber(has[2] or 0)
  -- Of one that waits, the weight that is in the pool's sum: a share of more than all there is would be none.
  local counted_milli = tonumber(has[15])
  ask.weight_milli = counted_milli or weight_in(has[5])
  ask.rpm, ask.tpm = tonumber(has[6]), tonumber(has[7])
  ask.rpm_ms, ask.tpm_ms = tonumber(has[8]) or 0, tonumber(has[9]) or 0
  ask.own_mwt = tonumber(has[10] or 0)

  ask.slots, ask.running = tonumber(pool[1] or 0), tonumber(pool[2] or 0)
  ask.pool_mwt = tonumber(pool[3] or 0)
  ask.idle = active == 0 and ask.running < ask.slots
  -- The sum of the weights of those who wait, the asking one included.
  ask.weights_milli = tonumber(pool[4] or 0) + (counted_milli and 0 or ask.weight_milli)
  ask.mean_mwt, ask.run_ms = tonumber(pool[5]), tonumber(pool[6])
  ask.mu = tonumber(pool[7] or 0) or 0
  ask.prefill, ask.tpot_ms = tonumber(pool[8] or 0) or 0, tonumber(pool[9] or 0) or 0
  ask.rated = ask.mu > 0 and ask.prefill > 0 and ask.tpot_ms > 0 and now_ms - (tonumber(pool[10] or 0) or 0) <= RATES_MS

  local expected = length_of(has[11], has[12], pool[11], pool[12], ask.max_tokens)
  ask.median = length_of(has[11], has[13], pool[11], pool[13], ask.max_tokens)
  ask.shorter = math.min(ask.median, length_of(has[11], has[14], 0, 0, ask.max_tokens))
  if ask.cost_mwt < 0 then
    ask.cost_mwt = math.floor(1000 * (ask.prompt_tokens + (tonumber(set[7]) or 4) * expected))
  end
  ask.mean_mwt = ask.mean_mwt or ask.cost_mwt
  ask.max_wait_ms = tonumber(set[8]) or 8000
  ask.most_mwt = math.max(ask.max_wait_ms * ask.mu, 2 * active * ask.mean_mwt)
  ask.margin = ask.idle and 1 or tonumber(set[9]) or 0.8
  -- Whether the pool has tiers; who looks says which, for only admission moves them.
  ask.degrades = set[10] == 'on' and ask.full
  ask.tiered, ask.tier = ask.degrades and ask.rated, 0
end

-- ms in which the pool does so much work, or the asking tenant's share of it does.
local function drain_ms(ask, mwt, shared)
  if not ask.rated then
    -- Without rates: the time between two ends, were all slots busy; nothing known yet: a second.
    return ask.run_ms and ask.run_ms / math.max(1, ask.slots) or 1000
  end
  return mwt / ask.mu * (shared and ask.weights_milli / ask.weight_milli or 1)
end

local function check_worker(ask)
  if redis.call('ZCOUNT', k_pool .. ask.slug, now_ms - LIVE_MS, '+inf') == 0 then
    return { 'no_worker', 'live_workers', 0, 1, 2000 }
  elseif ask.draining then
    return { 'draining', 'draining', 1, 0, 5000 }
  end
end

-- Both rates as a virtual schedule (GCRA): the moment at which all that came would be within the rate.
local function check_rates(ask)
  local tokens = ask.prompt_tokens + ask.max_tokens
  ask.next_rpm_ms = ask.rpm and math.max(ask.rpm_ms, now_ms) + RATE_WINDOW_MS / ask.rpm
  ask.next_tpm_ms = ask.tpm and math.max(ask.tpm_ms, now_ms) + RATE_WINDOW_MS * tokens / ask.tpm
  if ask.next_rpm_ms and ask.next_rpm_ms > now_ms + RATE_WINDOW_MS then
    return { 'rate_limited', 'requests_per_minute', ask.rpm, ask.rpm, ask.next_rpm_ms - now_ms - RATE_WINDOW_MS }
  end
  -- One job of any size may come when nothing came for a minute.
  if ask.next_tpm_ms and ask.tpm_ms > now_ms and ask.next_tpm_ms > now_ms + RATE_WINDOW_MS then
    return { 'rate_limited', 'tokens_per_minute', ask.tpm, ask.tpm,
      math.min(ask.tpm_ms - now_ms, ask.next_tpm_ms - now_ms - RATE_WINDOW_MS) }
  end
end

-- Who may use the places that are kept: tenants with nothing waiting, and those that wait with less than their share of
-- the pool's work. Places are counted in jobs and a small job is little work, so that the jobs of one tenant may be no
-- more than its share of the kept places: many small ones cannot fill them.
local function is_kept_for(ask, kept)
  return ask.waiting == 0
    or ask.own_mwt * ask.weights_milli < ask.weight_milli * ask.pool_mwt
    and ask.waiting * ask.weights_milli < ask.weight_milli * kept
end

-- The last quarter of the places is kept for who waits with little: a global bound alone would be a hole.
local function check_inflight(ask)
  local kept = ask.full and math.floor(ask.max_inflight / 4) or 0
  local places = is_kept_for(ask, kept) and ask.max_inflight or ask.max_inflight - kept
  if ask.inflight >= places then
    -- With fewer places than slots the pool never does all that it could.
    local busy = math.min(1, ask.max_inflight / math.max(1, ask.slots))
    return { 'inflight_full', 'inflight', ask.inflight, ask.max_inflight, drain_ms(ask, ask.mean_mwt) / busy }
  end
end

local function check_lists(ask)
  if ask.waiting >= ask.max_waiting then
    return { 'tenant_queue_full', 'tenant_waiting_jobs', ask.waiting, ask.max_waiting, drain_ms(ask, ask.mean_mwt, true) }
  end
  local tokens = ask.prompt_tokens + ask.max_tokens
  if ask.waiting > 0 and ask.waiting_tokens + tokens > ask.max_waiting_tokens then
    return { 'tenant_tokens_full', 'tenant_waiting_tokens', ask.waiting_tokens, ask.max_waiting_tokens,
      drain_ms(ask, ask.cost_mwt, true) }
  end
end

-- Whether it waits with no more than its share of what waits; who waits with nothing does.
local function is_under_share(ask)
  return ask.own_mwt * ask.weights_milli <= ask.weight_milli * ask.pool_mwt
end

-- Dynamic threshold (Choudhury and Hahne 1998): what one may wait with shrinks as the pool fills. At the highest tier
-- only tenants under their share may come.
local function check_share(ask)
  local alpha = ask.tier > 0 and ALPHA_PRESSED or ALPHA
  local most = alpha * ask.weight_milli / ask.weights_milli * (ask.most_mwt - ask.pool_mwt)
  if ask.tier == HIGHEST_TIER and not is_under_share(ask) then
    most = math.min(most, ask.weight_milli / ask.weights_milli * ask.pool_mwt)
  end
  if ask.own_mwt > 0 and ask.own_mwt + ask.cost_mwt > most then
    return { 'tenant_share_full', 'tenant_waiting_work', math.floor(ask.own_mwt / 1000), math.floor(math.max(0, most) / 1000),
      drain_ms(ask, ask.own_mwt + ask.cost_mwt - most, true) }
  end
end

-- Who waits already was refused by its share before the backlog is full: this is for who comes new.
local function check_backlog(ask)
  local most = BACKLOG_SLACK * ask.most_mwt
  if ask.pool_mwt > most then
    return { 'backlog_full', 'waiting_work', math.floor(ask.pool_mwt / 1000), math.floor(ask.most_mwt / 1000),
      drain_ms(ask, ask.pool_mwt - most) }
  end
end

-- ms that prompt and median answer take by themselves. A tenant that waits with no more than its share is judged by
-- its shorter answers.
local function own_ms_of(ask)
  return 1000 * ask.prompt_tokens / ask.prefill + (is_under_share(ask) and ask.shorter or ask.median) * ask.tpot_ms
end

-- ms until the answer is ready, as far as can be said: the wait and what it takes by itself.
local function predict(ask)
  local wait_ms = 0
  if not ask.idle then
    local before = math.min(ask.pool_mwt, ask.own_mwt * ask.weights_milli / ask.weight_milli)
    wait_ms = before / ask.mu + (ask.run_ms or 0) / math.max(1, ask.slots)
  end
  ask.start_ms = wait_ms + 1000 * ask.prompt_tokens / ask.prefill
  ask.finish_ms = wait_ms + ask.own_ms
end

-- A job that may be changed and whose answer would come too late is judged by the answer that still fits.
local function shorten(ask)
  local most_ms, least_ms = ask.margin * ask.deadline_in_ms, math.min(SHORTEST_ANSWER, ask.max_tokens) * ask.tpot_ms
  if ask.finish_ms > most_ms and ask.start_ms + least_ms <= most_ms then
    ask.own_ms = ask.own_ms - (ask.finish_ms - most_ms)
    ask.finish_ms, ask.shortened = most_ms, true
  end
end

local function check_deadline(ask)
  local most, start_most = ask.margin * ask.deadline_in_ms, ask.margin * ask.start_within_ms
  local over = ask.finish_ms - most
  if ask.start_within_ms > 0 then
    over = math.max(over, ask.start_ms - start_most)
  end
  if over > 0 then
    -- What even an empty system could not do in time gets no promise.
    local prompt_ms = 1000 * ask.prompt_tokens / ask.prefill
    local hopeless = (ask.own_ms > ask.deadline_in_ms
      or ask.start_within_ms > 0 and prompt_ms > ask.start_within_ms) and 1 or 0
    return { 'deadline_unmeetable', 'predicted_ms', math.floor(ask.finish_ms), math.floor(most), over, hopeless }
  end
end

-- The first check that refuses: reason, limit, value, max, ms until it makes sense to come back, hopeless. Else nil.
local function verdict(ask)
  ask.own_ms = ask.rated and own_ms_of(ask) or -1
  local refusal = check_worker(ask) or check_rates(ask) or check_inflight(ask) or check_lists(ask)
  if not refusal and ask.rated then
    predict(ask)
    if ask.degrade == 1 and ask.tier > 0 and not ask.idle then
      shorten(ask)
    end
    if ask.full then
      refusal = check_share(ask) or check_backlog(ask) or check_deadline(ask)
    end
  end
  return refusal
end
