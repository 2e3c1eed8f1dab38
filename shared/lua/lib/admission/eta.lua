-- eta: predicts when an offered job has its first token and when it ends; learns from the waits of admitted jobs.
-- KEYS books order tenant
-- USES clock turns priority lengths tier slot_wait
-- docs/fairness.md explains the formulas.

-- A prediction of a wait is corrected by a factor that is learned for each class of jobs, because the formula does not
-- know the jobs that will arrive and go first. The logarithm of the factor moves towards that of each job's error: by
-- at most WAIT_STEP in thousandths. WAIT_FLOOR_MS keeps errors of a few ms from counting.
local WAIT_STEP, WAIT_FLOOR_MS = 100, 50
-- The bounds of the interval in which nine of ten jobs end, on either side, are factors that are learned too. A bound
-- moves by this many thousandths of its logarithm, a tenth of it inwards for each job that keeps it.
local BOUND_STEP = 60
-- No factor is learned beyond e^3.
local MAX_LEARNED = 3000
-- How much shorter and longer than predicted a wait often is, as a start.
local SHORT_WAIT, LONG_WAIT = 0.5, 1.6

-- Whether the tenant's queued work is at most its share of the pool's queued work. True if the tenant has no queued
-- jobs.
local function is_under_share(seen)
  return seen.tenant_mwt * seen.total_weight_milli <= seen.weight_milli * seen.pool_mwt
end

-- Returns how long the pool takes to compute the prompt and an answer, without waiting, in ms. An answer of median
-- length is assumed, or a shorter one (the 35th percentile) if the tenant's queued work is at most its share.
local function compute_ms_of(asked, seen)
  local answer_tokens = is_under_share(seen) and seen.short_tokens or seen.median_tokens
  return 1000 * asked.prompt_tokens / seen.prefill_tps + answer_tokens * seen.tpot_ms
end

-- Returns the work that is leased while `jobs` jobs of an owner, which cost `mwt` together, get their turns in a set:
-- these jobs, and the jobs of other owners whose turns come before theirs. `other_mwt` is the others' queued work, and
-- `total_weight_milli` the sum of the weights in the set.
local function work_in_set(asked, seen, owner, group, mwt, jobs, other_mwt, weight_milli, total_weight_milli)
  -- In turns mode a job is one unit of service, whatever it costs.
  local unit_mwt = seen.counts_turns and seen.mean_mwt / 1000 or 1
  local own_service = seen.counts_turns and 1000 * jobs or mwt
  local mean_service = seen.counts_turns and 1000 or seen.mean_mwt
  -- Each owner that has received less gets a turn first. On average it lags by half of the greatest lag, and goes
  -- beyond that by half a job: it gets one whole job at least.
  local active_key, score, is_member = priority.set_key(asked.slug, group, asked.is_batch), turns.score_of(asked,
    owner, group)
  local least = number(redis.call('ZRANGE', active_key, 0, 0, 'WITHSCORES')[2], score)
  local ahead = redis.call('ZCOUNT', active_key, '-inf', '(' .. digits(score))
  local others = redis.call('ZCARD', active_key) - (is_member and 1 or 0)
  local mean_weight = (total_weight_milli - weight_milli) / 1000 / math.max(1, others)
  local lag = math.max((score - least) / 2 + mean_service / 2, mean_service)
  local other_weight = (total_weight_milli - weight_milli) / weight_milli
  return mwt + math.min(math.max(0, other_mwt), unit_mwt * (ahead * mean_weight * lag + other_weight * own_service))
end

-- Returns the work that is leased before the job, in thousandths of a weighted token: the tenant's jobs that start
-- sooner (`rank` jobs), what the other tenants of its group get meanwhile, and what the other groups get while all of
-- that runs.
local function work_before(asked, seen, rank)
  local own, jobs = seen.member or seen, rank
  local mwt = own.tenant_mwt * (rank / math.max(1, own.waiting_here))
  if seen.member then
    -- The sum of the weights within a group is not kept: all its tenants are taken to have this tenant's weight.
    local others = redis.call('ZCARD', priority.set_key(asked.slug, seen.unit, asked.is_batch))
      - (own.waiting_here > 0 and 1 or 0)
    local own_mwt = mwt
    mwt = work_in_set(asked, seen, asked.tenant, seen.unit, mwt, rank, seen.tenant_mwt - own.tenant_mwt,
      own.weight_milli, own.weight_milli * (1 + math.max(0, others)))
    jobs = jobs + (mwt - own_mwt) / math.max(1, seen.mean_mwt)
  end
  mwt = work_in_set(asked, seen, seen.unit, '', mwt, jobs, seen.pool_mwt - seen.tenant_mwt, seen.weight_milli,
    seen.total_weight_milli)
  -- A batch job goes after all other work that is queued.
  return asked.is_batch and math.min(seen.pool_mwt, seen.main_mwt + mwt) or mwt
end

-- Returns the job's class: `i` if the pool is idle; `s` if the job gets a slot of its tenant's share that others have;
-- `l` for a batch job; `n` if the tenant has no jobs queued in the pool; `h` if the job would become the head of its
-- queue; else `b` and the logarithm of the time until its latest start, because later jobs of the tenant with an
-- earlier latest start go first.
local function class_of(asked, seen, verdict, rank, latest_in_ms, is_early)
  if verdict.idle then
    return 'i'
  elseif is_early then
    return 's'
  elseif asked.is_batch then
    return 'l'
  elseif (seen.member or seen).waiting_here == 0 then
    return 'n'
  elseif rank == 0 then
    return 'h'
  end
  return 'b' .. math.floor(math.log(math.max(1, latest_in_ms)) / math.log(2))
end

local function factor_of(stored)
  return math.exp(number(stored, 0, -MAX_LEARNED, MAX_LEARNED) / 1000)
end

-- Returns the lengths between which the tenant's answers usually are: the 10th and the 90th percentile.
local function usual_lengths(asked)
  local of_tenant = read_fields(k_tenant .. asked.tenant, { 'len_n', 'len_p10', 'len_p90' })
  local of_pool = read_fields(k_books .. asked.slug, { 'len_n', 'len_p10', 'len_p90' })
  local max_tokens, candidates = asked.max_tokens, asked.candidates
  return lengths.length_of(of_tenant.len_n, of_tenant.len_p10, of_pool.len_n, of_pool.len_p10, max_tokens, candidates),
    lengths.length_of(of_tenant.len_n, of_tenant.len_p90, of_pool.len_n, of_pool.len_p90, max_tokens, candidates)
end

-- Returns the mean time until one of the pool's slots, which are all taken, becomes free.
local function slot_ms_of(seen)
  return (seen.run_ms or 0) / math.max(1, seen.slots)
end

-- Returns the ms that the pool needs for all queued and running work: no predicted wait is longer, whatever was
-- learned. If running jobs take longer than their costs say, it is at least the mean time until a slot is free.
local function longest_wait_ms(seen)
  return seen.pool_mwt / seen.mu + math.max(seen.running_mwt / seen.mu, slot_ms_of(seen))
end

-- Returns the wait of a job before which `rank` queued jobs of its tenant start, the wait that admission assumes at
-- least, and whether the job gets a slot of its tenant's share that others have.
local function waits_of(asked, seen, verdict, rank, own_jobs)
  if verdict.idle then
    return 0, 0, false
  elseif slot_wait.is_contested(asked) then
    slot_wait.look_at_slots(asked, seen, verdict)
    local wait_ms, is_early = slot_wait.slot_wait_ms(verdict.slot_view, rank)
    return wait_ms, slot_wait.slot_wait_ms(verdict.slot_view, own_jobs), is_early
  end
  local slot_ms = slot_ms_of(seen)
  return work_before(asked, seen, rank) / seen.mu + slot_ms,
    slot_ms + math.min(seen.pool_mwt, (asked.is_batch and seen.main_mwt or 0)
      + seen.tenant_mwt * seen.total_weight_milli / seen.weight_milli) / seen.mu, false
end

-- Predicts the ms until the whole answer is ready (`eta_ms`) and the interval in which eight of ten such jobs end
-- (`early_ms` to `late_ms`). `prediction` is what the job's record keeps. Admission decides by the ms to the first
-- token (`start_ms`) and to the end (`finish_ms`), which assume at least the time that the tenant's share of the pool
-- needs for all of the tenant's queued jobs: a job that starts before some of them makes these later. `long_ms` is how
-- long the pool takes for the prompt and a long answer (the 90th percentile), and `learned_ms` is the part of the wait
-- that the learned factor adds.
local function predict(asked, seen, verdict)
  local latest_in_ms = asked.latest_in_ms or math.max(0, math.floor(verdict.deadline_in_ms - verdict.compute_ms))
  local own_jobs = (seen.member or seen).waiting_here
  local rank = own_jobs > 0 and math.min(own_jobs, redis.call('ZCOUNT',
    k_order .. asked.tenant .. '.' .. asked.slug, '-inf',
    '(' .. digits(priority.order_score(asked.priority, now_us + 1000 * latest_in_ms)))) or 0
  local formula_ms, share_wait_ms, is_early = waits_of(asked, seen, verdict, rank, own_jobs)
  local most_ms = longest_wait_ms(seen)
  -- Before a worker has loaded the model, no job starts.
  local load_ms = seen.load_ms
  formula_ms, share_wait_ms = load_ms + math.min(most_ms, formula_ms), load_ms + math.min(most_ms, share_wait_ms)
  most_ms = load_ms + most_ms
  local class = class_of(asked, seen, verdict, rank, latest_in_ms, is_early)
  local learned = read_fields(k_books .. asked.slug, { 'wait|' .. class, 'early|' .. class, 'late|' .. class })
  local wait_ms = verdict.idle and load_ms
    or math.max(load_ms, math.min(most_ms, (formula_ms + WAIT_FLOOR_MS) * factor_of(learned['wait|' .. class])
    - WAIT_FLOOR_MS))
  -- The work that others do while the job is paused would otherwise have delayed its start.
  local longest_pause_ms = most_ms - math.max(wait_ms, share_wait_ms)
  local function pause_ms_of(compute_ms)
    return verdict.slot_view and math.min(longest_pause_ms, slot_wait.paused_ms_of(verdict.slot_view, compute_ms)) or 0
  end
  local paused_ms = pause_ms_of(verdict.compute_ms)
  local prompt_ms = 1000 * asked.prompt_tokens / seen.prefill_tps
  verdict.eta_ms = wait_ms + verdict.compute_ms + paused_ms
  verdict.start_ms = math.max(wait_ms, share_wait_ms) + prompt_ms
  verdict.finish_ms = math.max(wait_ms, share_wait_ms) + verdict.compute_ms + paused_ms
  local short_tokens, long_tokens = usual_lengths(asked)
  verdict.long_ms = prompt_ms + long_tokens * seen.tpot_ms
  verdict.long_ms = verdict.long_ms + pause_ms_of(verdict.long_ms)
  verdict.learned_class, verdict.learned_ms = class, wait_ms - math.max(formula_ms, share_wait_ms)
  local early_ms = (SHORT_WAIT * wait_ms + prompt_ms + short_tokens * seen.tpot_ms) * factor_of(learned['early|'
    .. class])
  local late_ms = (LONG_WAIT * wait_ms + verdict.long_ms) * factor_of(learned['late|' .. class])
  verdict.early_ms = math.min(early_ms, verdict.eta_ms)
  verdict.late_ms = math.max(verdict.eta_ms, math.min(late_ms, verdict.deadline_in_ms))
  verdict.prediction = string.format('%.0f %.0f %.0f %.0f %s', wait_ms + prompt_ms, verdict.early_ms, verdict.late_ms,
    formula_ms, class)
end

-- Returns the prediction that a job's record keeps, or nil: the ms from its admission to the first token and to the
-- bounds of the end, the ms that the formula gave for its wait, and its class.
local function prediction_of(job)
  local start_ms, early_ms, late_ms, formula_ms, class = string.match(job.predicted,
    '^(%d+) (%d+) (%d+) (%d+) ([inhbls]%d?%d?)$')
  local prediction = { start_ms = number(start_ms), early_ms = number(early_ms), late_ms = number(late_ms),
    formula_ms = number(formula_ms), class = class }
  return prediction.start_ms and prediction.early_ms and prediction.late_ms and prediction.formula_ms and prediction
end

-- Returns a learned factor, in thousandths of its logarithm.
local function read_factor(slug, field)
  return number(redis.call('HGET', k_books .. slug, field), 0, -MAX_LEARNED, MAX_LEARNED)
end

-- Moves a learned factor, whose value is `before`, by thousandths of its logarithm.
local function moved_factor(before, by)
  return math.max(-MAX_LEARNED, math.min(MAX_LEARNED, math.floor(before + by + 0.5)))
end
local function learn_factor(slug, field, before, by)
  local after = moved_factor(before, by)
  if after ~= before then
    redis.call('HSET', k_books .. slug, field, after)
  end
end

local function learn_wait(slug, prediction, waited_ms)
  if prediction.class == 'i' then
    return
  end
  local field = 'wait|' .. prediction.class
  local learned = read_factor(slug, field)
  local error = 1000 * math.log((waited_ms + WAIT_FLOOR_MS) / (prediction.formula_ms + WAIT_FLOOR_MS)) - learned
  learn_factor(slug, field, learned, math.max(-WAIT_STEP, math.min(WAIT_STEP, error / 5)))
end

-- Lowers the learned factor of a refused job, which would have been admitted without it. Only admitted jobs correct a
-- factor, so a factor that refuses all jobs of its class would otherwise stay as it is.
local function relax_wait_factor(asked, verdict)
  local step = 20
  local field = 'wait|' .. verdict.learned_class
  local learned = read_factor(asked.slug, field)
  learn_factor(asked.slug, field, learned, -math.min(step, math.max(0, learned)))
end

-- Learns from when a job ended, `ended_in_ms` after its admission.
local function learn_end(slug, prediction, ended_in_ms)
  local early, late = 'early|' .. prediction.class, 'late|' .. prediction.class
  local learned = read_fields(k_books .. slug, { early, late })
  local early_before, late_before = number(learned[early], 0, -MAX_LEARNED, MAX_LEARNED),
    number(learned[late], 0, -MAX_LEARNED, MAX_LEARNED)
  local early_after = moved_factor(early_before, ended_in_ms < prediction.early_ms and -0.9 * BOUND_STEP
    or 0.1 * BOUND_STEP)
  local late_after = moved_factor(late_before, ended_in_ms > prediction.late_ms and 0.9 * BOUND_STEP
    or -0.1 * BOUND_STEP)
  if early_after ~= early_before or late_after ~= late_before then
    redis.call('HSET', k_books .. slug, early, early_after, late, late_after)
  end
end

-- If the full answer would be late but a short answer would not, predicts the end of the longest answer that still
-- fits.
local function shorten(asked, seen, verdict)
  local limit_ms = verdict.margin * verdict.deadline_in_ms
  local min_answer_ms = math.min(tier.MIN_ANSWER_TOKENS, asked.max_tokens) * seen.tpot_ms
  if verdict.finish_ms > limit_ms and verdict.start_ms + min_answer_ms <= limit_ms then
    verdict.compute_ms = verdict.compute_ms - (verdict.finish_ms - limit_ms)
    verdict.finish_ms, verdict.shortened = limit_ms, true
    verdict.eta_ms = math.min(verdict.eta_ms, limit_ms)
  end
end

