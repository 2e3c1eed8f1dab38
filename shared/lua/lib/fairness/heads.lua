-- heads: says what a claim does with the job at the head of a tenant's queue.
-- KEYS order tenant books rq_job
-- KEEPS 1 2 5
-- USES clock settings job_record waiting turns priority pool_record lengths tier fastest_worker finish drop forget
-- USES slots_in_use stats deferral company prefixes
-- The functions share a table `view`, which read_view returns: what one claim knows of its pool and its worker. During
-- the claim, only its last fields change, from `is_batch` on; lib/pools/company.lua adds `company` and sets is_apart.

-- A job that needs more KV cells than are free is skipped this many times. After that, a slot is kept free for the job.
local MAX_SKIPS = 8
-- The most jobs that are passed at the front of one queue, because they are on their last attempt or are left to a
-- faster worker, and the most tenants that are passed in one group; and the most jobs behind such heads that one call
-- examines. These numbers are separate from the number of entries that a claim examines, so that a few tenants with
-- many such jobs, or one group with many such tenants, do not keep the worker from all others.
local MAX_PASSED, MAX_LOOKED_PAST = 16, 64
-- The most jobs that one call ends because their deadline can no longer be met.
local MAX_INFEASIBLE_HEADS = 32
-- The most jobs of its own tenant that pass a head because the worker has computed the beginning of their prompts. A
-- job that has to start within this time is not passed, nor one that would start too late after the passing job.
local MAX_PASSED_BY, MIN_SPARE_US = 4, 1000000

-- Returns the view of a claim. The pool's rates are used only if PENSTOCK_ADMISSION is `full`. In a mixed fleet, the
-- worker leaves some jobs to a much faster one, and whether a job can still be ready in time depends on the rates of
-- the fastest worker instead of the pool's. `own` has the worker's rates. `trusts_last` says whether several jobs on
-- their last attempt may run at once, and `is_apart` whether the worker may run a job that has a bound on its company.
local function read_view(slug, worker, own, worker_cells, trusts_last, is_apart)
  local degrades = settings.read_setting('degradation') == 'on'
  local stored = read_fields(k_books .. slug, { 'prefill_tps', 'tpot_ms', 'rates_ms', 'tier', 'tier_look_ms',
    'waiting_mwt', 'batch_mwt', 'policy_local', 'waiting', 'paused' })
  local pool = { prefill_tps = number(stored.prefill_tps, 0), tpot_ms = number(stored.tpot_ms, 0) }
  local has_rates = settings.read_setting('admission') == 'full'
    and now_ms - number(stored.rates_ms, 0) <= pool_record.RATES_MS and pool.prefill_tps > 0
  local fastest = has_rates and fastest_worker.read_fastest(slug) or nil
  return { slug = slug, own = own, pool = pool, has_rates = has_rates, trusts_last = trusts_last, worker = worker,
    is_apart = is_apart, worker_cells = worker_cells, is_local = stored.policy_local == '1',
    degrades = degrades,
    queued_jobs = number(stored.waiting or '0', math.huge, 0), paused_jobs = number(stored.paused, 0),
    tier = degrades and has_rates and tier.tier_in_force(stored.tier, stored.tier_look_ms,
      priority.counted_work(false, number(stored.waiting_mwt, 0), number(stored.batch_mwt, 0))) or 0,
    faster = fastest_worker.if_much_faster(fastest, own), best = fastest_worker.if_much_faster(fastest, pool) or pool,
    margin = settings.read_setting('admission_safety_margin'), max_attempts = settings.read_setting('max_attempts'),
    is_batch = false, infeasible_heads = 0, looked_past = 0, left_to_faster = false, has_suspect = false,
    held_prefixes = '' }
end

-- Returns the tier that applies to a job: the higher of the pool's tier now and the pool's tier when the job was
-- admitted, or 0 if the job's answer must not be cut.
local function tier_for(view, job)
  return job.degrade >= 0 and math.max(view.tier, job.degrade) or 0
end

-- At tier 1 and above, cuts the job's answer to the number of tokens that the pool's rates allow in the time that is
-- left until the deadline.
local function cut_answer(view, job)
  local job_tier, previous_cut = tier_for(view, job), job.cut_tokens
  local left_ms = view.margin * (job.deadline_ms - now_ms)
    - 1000 * (job.prompt_tokens + job.kept_tokens) / view.pool.prefill_tps
  local fitting_tokens = job.kept_tokens
    + math.max(tier.MIN_ANSWER_TOKENS, math.floor(left_ms / math.max(0.001, view.pool.tpot_ms)))
  -- A job that was admitted only because a short answer fits is cut even if the rates are older than RATES_MS.
  local rates_usable = view.has_rates or job.degrade > 0 and view.pool.prefill_tps > 0
  job.cut_tokens = job_tier > 0 and rates_usable and fitting_tokens < job.max_tokens and fitting_tokens or 0
  if job.cut_tokens > 0 then
    redis.call('HSET', k_rq_job .. job.id, 'penstock_cut_tokens', job.cut_tokens, 'penstock_cut_tier', job_tier)
    if previous_cut == 0 then
      stats.count('degraded|' .. stats.label_of(job.tenant) .. '|max_tokens')
    end
  elseif previous_cut > 0 then
    redis.call('HDEL', k_rq_job .. job.id, 'penstock_cut_tokens', 'penstock_cut_tier')
  end
end

-- Whether a claim now would be the job's last attempt. A worker runs only one such job at a time: if eight of them ran
-- before another server and one made it fail, all eight would fail. A worker before another server trusts them once one
-- of them has succeeded, until an attempt fails.
local function is_suspect(view, job)
  return view.max_attempts > 1 and not view.trusts_last and job.counted_attempts >= view.max_attempts - 1
end

-- Whether not even a short answer (the 20th percentile of the lengths of the tenant's answers) can be ready by the
-- deadline. Always false if the tenant has fewer than 8 recorded answers, or if no other job wants the slot.
local function is_infeasible(view, job, group)
  local left_ms = job.deadline_ms - now_ms
  if not view.has_rates or view.infeasible_heads >= MAX_INFEASIBLE_HEADS
    or fastest_worker.time_on(view.best, job, job.max_tokens) <= left_ms then
    return false
  end
  local tenant_lengths = read_fields(k_tenant .. job.tenant, { 'len_n', 'len_p20' })
  local short_tokens = math.min(job.max_tokens, job.candidates * number(tenant_lengths.len_p20, 0))
  if tier_for(view, job) > 0 then
    short_tokens = math.min(short_tokens, tier.MIN_ANSWER_TOKENS)
  end
  if number(tenant_lengths.len_n, 0) < lengths.MIN_LENGTHS
    or fastest_worker.time_on(view.best, job, short_tokens) <= left_ms then
    return false
  end
  return priority.owners_with_jobs(view.slug, '') > 1 or redis.call('ZCARD', k_order .. job.queue) > 1
    or group ~= '' and priority.owners_with_jobs(view.slug, group) > 1
end

-- Whether this worker leaves the job to a faster one. A job whose answer is cut fits the time that is left.
local function is_for_faster(view, job)
  local is_left = view.faster and tier_for(view, job) == 0 and fastest_worker.leaves_to(view.faster, view.own, job)
    or false
  view.left_to_faster = view.left_to_faster or is_left
  return is_left
end

-- Returns the number of KV cells that the engine reserves for a job, and whether as many are free. A job that needs
-- more than the worker has takes all of them.
local function cells_for(job)
  return job_record.cells_of(job, job.cut_tokens > 0 and job.cut_tokens or job.max_tokens)
end
local function fits(view, cells_needed, cells)
  return math.min(cells_needed, view.worker_cells) <= cells
end

-- Returns 'pass' to try the next tenant, a few times, and then 'stop' to keep the free slot for the job: others would
-- else take each slot and its cells. `has_slot` is true if a slot is free, and not only one that another job could
-- give.
local function wait_for_room(job, has_slot)
  if has_slot and job.skips >= MAX_SKIPS then
    return 'stop'
  elseif has_slot then
    redis.call('HINCRBY', k_rq_job .. job.id, 'penstock_skips', 1)
  end
  return 'pass'
end

-- Returns `granted` if a job fits into the free cells, and otherwise what `wait_for_room` returns.
local function wait_for_cells(view, job, cells_needed, cells, has_slot, granted)
  return fits(view, cells_needed, cells) and granted or wait_for_room(job, has_slot)
end

-- A job that gets a slot is passed over as often as before if it has to wait for cells again.
local function clear_skips(job)
  if job.skips > 0 then
    redis.call('HDEL', k_rq_job .. job.id, 'penstock_skips')
  end
end

-- Returns what to do with a job at the front of a tenant's queue: 'lease' to lease the job; 'behind' to look for
-- another job of the tenant; 'pass' to try the next tenant; 'stop' to keep the slot free for the job; or 'gone' if this
-- function has ended the job. `has_slot` is as in `wait_for_cells`.
local function decide(view, job, group, cells, has_slot)
  if job.wanted_ms <= now_ms then
    finish.end_job(job, deferral.late_ending(job, 'deadline_exceeded'), now_ms)
    return 'gone'
  end
  if job.is_private and not view.is_local then
    -- An operator has removed the pool's mark since the job was admitted.
    drop.cancel_job(job, 'not_local', now_ms)
    return 'gone'
  end
  if is_infeasible(view, job, group) then
    view.infeasible_heads = view.infeasible_heads + 1
    finish.end_job(job, deferral.late_ending(job, 'deadline_unmeetable'), now_ms)
    return 'gone'
  end
  if job.wait_until_ms > now_ms or is_suspect(view, job) and view.has_suspect or is_for_faster(view, job) then
    return 'behind'
  end
  local apart = company.kept_apart(view, job)
  if apart then
    return apart == 'worker' and 'stop' or wait_for_room(job, has_slot)
  end
  return wait_for_cells(view, job, job_record.cells_of(job, job.max_tokens), cells, has_slot, 'lease')
end

-- Returns the first job of a queue, after the head, that does not wait by itself, is not on its last attempt and is not
-- left to a faster worker.
-- The jobs before it keep their places, so each of them runs as soon as a worker runs no other job on its last attempt,
-- or a faster worker claims. A batch job does not get ahead of a head that is not one.
local function first_behind(view, queue)
  local ids = redis.call('ZRANGE', k_order .. queue, 1, MAX_PASSED)
  for i = 1, math.min(#ids, MAX_LOOKED_PAST - view.looked_past) do
    view.looked_past = view.looked_past + 1
    local job = job_record.read_job(ids[i])
    if job and job.state == 'queued' and job.wait_until_ms <= now_ms and view.is_batch == (job.priority < 0)
      and not is_suspect(view, job) and not is_for_faster(view, job) then
      return job
    end
  end
end

-- Whether a job behind a head can be leased in its place. Unlike `decide`, this function changes nothing.
local function may_pass(view, job, head, group, cells)
  return job and job.state == 'queued' and job.priority == head.priority and job.wait_until_ms <= now_ms
    and job.wanted_ms > now_ms and not (job.is_private and not view.is_local) and not is_suspect(view, job)
    and not is_for_faster(view, job) and not company.kept_apart(view, job)
    and fits(view, job_record.cells_of(job, job.max_tokens), cells) and not is_infeasible(view, job, group)
end

-- Returns the job to lease of a queue whose head can be leased: the one of the first few with the longest beginning
-- that the worker has computed. The tenant's turn costs the same, and the head is passed a few times at most. The job
-- may take the only slot, so the jobs that it passes must be in time after its whole answer.
local function best_held(view, queue, head, group, cells)
  local depth = prefixes.held_depth(view.held_prefixes, head.prefix)
  local until_us, has_rates = math.min(head.latest_us, 1000 * head.wanted_ms), view.own.prefill_tps > 0
  if until_us - now_us < MIN_SPARE_US
    or number(redis.call('HGET', k_rq_job .. head.id, 'penstock_passed_by'), 0, 0) >= MAX_PASSED_BY then
    return head
  end
  local best = head
  for _, id in ipairs(redis.call('ZRANGE', k_order .. queue, 1, MAX_PASSED_BY)) do
    local fields = peek_fields(k_rq_job .. id, { 'penstock_prefix', 'penstock_admitted_ms',
      'penstock_start_within_ms' })
    local its_depth = prefixes.held_depth(view.held_prefixes, fields.penstock_prefix or '')
    local job = its_depth > depth and job_record.read_job(id)
    if job and until_us - now_us >= (has_rates and 1000 * fastest_worker.time_on(view.own, job, job.max_tokens) or 0)
      and may_pass(view, job, head, group, cells) then
      best, depth = job, its_depth
    end
    -- The queue is ordered by latest start, but not by start deadline.
    local start_within_ms = number(fields.penstock_start_within_ms, 0, 0)
    if start_within_ms > 0 then
      until_us = math.min(until_us, 1000 * (number(fields.penstock_admitted_ms, now_ms, 0, now_ms) + start_within_ms))
    end
  end
  if best ~= head then
    redis.call('HINCRBY', k_rq_job .. head.id, 'penstock_passed_by', 1)
  end
  return best
end

-- Returns what to do with the queue of a tenant whose turn it is, as `decide`, and the job that is to be leased.
local function examine(view, tenant, group, cells, has_slot)
  local queue = tenant .. '.' .. view.slug
  local id = redis.call('ZRANGE', k_order .. queue, 0, 0)[1]
  local job = id and job_record.read_job(id)
  if not job or job.state ~= 'queued' then
    if not id and slots_in_use.rows_of(view.slug, 'p', tenant) > 0 then
      return 'pass'
    end
    waiting.strike(tenant, view.slug, id or '')
    if id and not job then
      forget.forget_job(id)
    end
    return 'gone'
  elseif (job.priority < 0) ~= view.is_batch then
    -- The tenant is here for a paused job, or another program has put it into the wrong set.
    return turns.change_set(tenant, view.slug, priority.has_only_batch(tenant, view.slug)) == 1 and 'gone' or 'pass'
  end
  local action = decide(view, job, group, cells, has_slot)
  if action == 'behind' then
    job = first_behind(view, queue)
    action = job and decide(view, job, group, cells, has_slot) or 'pass'
  elseif action == 'lease' and view.held_prefixes ~= '' and not prefixes.is_held(view.held_prefixes, job.prefix) then
    job = best_held(view, queue, job, group, cells)
  end
  return action, job
end
