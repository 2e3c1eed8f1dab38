-- claim: leases the next jobs of a pool to one worker; the tenant with the least service goes first.
-- KEYS worker books active order leases payload rq_job tenant events rq_workers_of rq_worker
-- ARGV
--   worker text · the worker that claims
--   claim_id text · claim token of all jobs that this call leases; a repeated call returns those that still run
--   slug text · the pool's model: its name in the form used in store keys
--   room int · number of free slots, and so the most jobs to lease
--   cells_free int · number of free KV cells
-- ANSWERS claimed
--   claimed: one list for each job: id, payload or '', attempt number, ms to the deadline, ms to the start deadline or
--   -1, tenant, model, prompt tokens, max tokens, cancel code or '', traceparent
-- KEEPS 1 2 3 5 7 8
-- USES clock settings afford mark schema job waiting turns rq stats stream books lengths tier fastest eta finish forget
-- RARELY finish forget strike note_wait restore_service unrecorded_service leaves_to wake_worker

-- The most entries of the active set that one call examines, whether or not it can lease their jobs.
local MAX_EXAMINED = 64
-- A job that needs more KV cells than are free is skipped this many times. After that, a slot is kept free for the job.
local MAX_SKIPS = 8
-- The most jobs that are passed at the front of one queue, because they are on their last attempt or are left to a faster
-- worker, and the most tenants that are passed in one group; and the most jobs behind such heads that one call examines.
-- These numbers are separate from MAX_EXAMINED, so that a few tenants with many such jobs, or one group with many such
-- tenants, do not keep the worker from all others.
local MAX_PASSED, MAX_LOOKED_PAST = 16, 64
-- The most jobs that one call ends because their deadline can no longer be met.
local MAX_INFEASIBLE_HEADS = 32

local worker_key = k_worker .. worker
local worker_fields = redis.call('HMGET', worker_key, 'claim_id', 'claim_ids', 'cells', 'suspect', 'prefill_tps',
  'tpot_ms')
local lease_ms, max_attempts, fairness, admission, degradation, margin, schema_oldest = read_settings('lease_ms',
  'max_attempts', 'fairness', 'admission', 'degradation', 'admission_safety_margin', 'schema_oldest')
local answer, ids = { 'claimed' }, {}

-- The pool's rates and tier. The rates are used only if PENSTOCK_ADMISSION is `full`.
local pool_fields = redis.call('HMGET', k_books .. slug, 'prefill_tps', 'tpot_ms', 'rates_ms', 'tier',
  'tier_look_ms', 'waiting_mwt')
local prefill_tps, tpot_ms = number(pool_fields[1], 0), number(pool_fields[2], 0)
local has_rates = admission == 'full' and now_ms - number(pool_fields[3], 0) <= RATES_MS and prefill_tps > 0
local tier = degradation == 'on' and has_rates and tier_in_force(pool_fields[4], pool_fields[5], pool_fields[6]) or 0
local min_wait_ms
-- In a mixed fleet, this worker leaves some jobs to a much faster one, and whether a job can still be ready in time
-- depends on the rates of the fastest worker instead of the pool's.
local own = { prefill_tps = number(worker_fields[5], 0), tpot_ms = number(worker_fields[6], 0) }
local pool = { prefill_tps = prefill_tps, tpot_ms = tpot_ms }
local fastest = has_rates and read_fastest(slug) or nil
local faster, best = if_much_faster(fastest, own), if_much_faster(fastest, pool) or pool

-- Appends a leased job to this script's answer. If the job's own answer is cut, sets max_tokens to the cut length, so
-- that a repeated call returns the same number and the main loop subtracts KV cells for the cut length only.
local function append_job(job)
  job.max_tokens = job.cut_tokens > 0 and job.cut_tokens or job.max_tokens
  local traceparent = redis.call('HGET', k_rq_job .. job.id, 'penstock_traceparent')
  local start_in_ms = job.start_within_ms > 0 and math.max(0, job.admitted_ms + job.start_within_ms - now_ms) or -1
  local payload = redis.pcall('GET', k_payload .. job.id)
  answer[#answer + 1] = { job.id, type(payload) == 'string' and payload or '', job.attempts, job.deadline_ms - now_ms,
    start_in_ms, job.tenant, job.model, job.prompt_tokens, job.max_tokens, job.cancel, traceparent or '' }
end

if worker_fields[1] == claim_id then
  for id in string.gmatch(worker_fields[2] or '', '%S+') do
    local job = read_job(id)
    if job and job.state == 'running' and job.claim == claim_id then
      append_job(job)
    end
  end
  return { 'claimed', unpack(answer, 2) }
end
if is_outdated(schema_oldest) then
  return { 'claimed' }
end

-- Returns the tier that applies to a job: the higher of the pool's tier now and the pool's tier when the job was
-- admitted, or 0 if the job's answer must not be cut.
local function tier_for(job)
  return job.degrade >= 0 and math.max(tier, job.degrade) or 0
end

-- At tier 1 and above, cuts the job's answer to the number of tokens that the pool's rates allow in the time that is
-- left until the deadline.
local function cut_answer(job)
  local job_tier, previous_cut = tier_for(job), job.cut_tokens
  local left_ms = margin * (job.deadline_ms - now_ms) - 1000 * job.prompt_tokens / prefill_tps
  local fitting_tokens = math.max(MIN_ANSWER_TOKENS, math.floor(left_ms / math.max(0.001, tpot_ms)))
  -- A job that was admitted only because a short answer fits is cut even if the rates are older than RATES_MS.
  local rates_usable = has_rates or job.degrade > 0 and prefill_tps > 0
  job.cut_tokens = job_tier > 0 and rates_usable and fitting_tokens < job.max_tokens and fitting_tokens or 0
  if job.cut_tokens > 0 then
    redis.call('HSET', k_rq_job .. job.id, 'penstock_cut_tokens', job.cut_tokens, 'penstock_cut_tier', job_tier)
    if previous_cut == 0 then
      count('degraded|' .. label_of(job.tenant) .. '|max_tokens')
    end
  elseif previous_cut > 0 then
    redis.call('HDEL', k_rq_job .. job.id, 'penstock_cut_tokens', 'penstock_cut_tier')
  end
end

-- Leases a job of a tenant whose turn it is in a group, or '' for none. The tenant and the group are charged the job's
-- estimated cost, or 1 weighted token in turns mode. Settle later replaces the estimate with the true cost.
local function lease(job, group)
  delist(job)
  job.attempts = job.attempts + 1
  if job.degrade >= 0 then
    cut_answer(job)
  end
  job.group, job.charged_mwt, job.group_charged_mwt = group, 0, 0
  charge(job, fairness == 'turns' and 1000 or job.cost_mwt)
  redis.call('ZADD', k_leases, now_ms + lease_ms, job.id)
  redis.call('HINCRBY', k_tenant .. job.tenant, 'running', 1)
  book(slug, 'running', 1)
  redis.call('HSET', k_rq_job .. job.id, 'penstock_state', 'running', 'penstock_claim', claim_id,
    'penstock_worker', worker, 'penstock_attempts', job.attempts, 'penstock_charged_mwt', job.charged_mwt,
    'penstock_started_ms', now_ms,
    'status', 'started', 'worker_name', worker, 'started_at', iso(now_ms), 'last_heartbeat', iso(now_ms))
  if group ~= '' then
    redis.call('HSET', k_rq_job .. job.id, 'penstock_group', group, 'penstock_group_charged_mwt', job.group_charged_mwt)
  end
  if redis.call('HSETNX', k_rq_job .. job.id, 'penstock_first_claim_ms', now_ms) == 1 then
    local label = label_of(job.tenant)
    count('executed')
    count('executed|' .. label .. '|' .. job.model)
    observe('queue_wait|' .. label .. '|' .. job.model, now_ms - job.admitted_ms)
    local prediction = read_prediction(job.id)
    if prediction then
      learn_wait(slug, prediction, now_ms - job.admitted_ms)
    end
  elseif job.requeued_at_ms > 0 then
    redis.call('HINCRBY', k_rq_job .. job.id, 'penstock_requeued_ms', now_ms - job.requeued_at_ms)
  end
  rq_start(job.queue, job.id, claim_id, now_ms)
  redis.call('SADD', k_rq_workers_of .. job.queue, k_rq_worker .. worker)
  add_entry(k_events .. job.id, '*', 'type', 'started', 'attempt', job.attempts)
  redis.call('PEXPIRE', k_events .. job.id, math.max(60000, job.deadline_ms - now_ms + 2 * lease_ms))
  local waited_ms = now_ms - math.max(job.admitted_ms, job.requeued_at_ms)
  min_wait_ms = math.min(min_wait_ms or waited_ms, waited_ms)
  ids[#ids + 1] = job.id
  append_job(job)
end

-- Whether a claim now would be the job's last attempt. A worker runs only one such job at a time: if it ran eight
-- together and one of them killed the worker, all eight would fail as poison.
local function is_suspect(job)
  return max_attempts > 1 and job.attempts >= max_attempts - 1
end

local has_suspect = false
if worker_fields[4] and worker_fields[4] ~= '' then
  local suspect = read_job(worker_fields[4])
  has_suspect = suspect and suspect.state == 'running' and suspect.worker == worker
end

-- Whether not even a short answer (the 20th percentile of the lengths of the tenant's answers) can be ready by the
-- deadline. Always false if the tenant has fewer than 8 recorded answers, or if no other job is queued for the slot.
local infeasible_heads, group_in_turn = 0, ''
local function is_infeasible(job)
  local left_ms = job.deadline_ms - now_ms
  if not has_rates or infeasible_heads >= MAX_INFEASIBLE_HEADS
    or time_on(best, job, job.max_tokens) <= left_ms then
    return false
  end
  local tenant_lengths = redis.call('HMGET', k_tenant .. job.tenant, 'len_n', 'len_p20')
  local short_tokens = math.min(job.max_tokens, number(tenant_lengths[2], 0))
  if tier_for(job) > 0 then
    short_tokens = math.min(short_tokens, MIN_ANSWER_TOKENS)
  end
  if number(tenant_lengths[1], 0) < MIN_LENGTHS
    or time_on(best, job, short_tokens) <= left_ms then
    return false
  end
  return redis.call('ZCARD', k_active .. slug) > 1 or redis.call('ZCARD', k_order .. job.queue) > 1
    or group_in_turn ~= '' and redis.call('ZCARD', k_active .. slug .. group_in_turn) > 1
end

-- Whether this worker leaves the job to a faster one. A job whose answer is cut fits the time that is left.
local left_to_faster = false
local function is_for_faster(job)
  local is_left = faster and tier_for(job) == 0 and leaves_to(faster, own, job) or false
  left_to_faster = left_to_faster or is_left
  return is_left
end

-- Returns what to do with a job at the front of a tenant's queue: 'lease' to lease the job; 'behind' to look for another
-- job of the tenant; 'pass' to go on to the next tenant; 'stop' to keep the slot free for the job; or 'gone' if this
-- function has ended the job.
local function decide(job, cells)
  if job.wanted_ms <= now_ms then
    finish(job, { outcome = 'expired', code = 'deadline_exceeded', stage = 'queue', finish_reason = '', result = '',
      rq_return = '' }, now_ms)
    return 'gone'
  end
  if is_infeasible(job) then
    infeasible_heads = infeasible_heads + 1
    finish(job, { outcome = 'expired', code = 'deadline_unmeetable', stage = 'queue', finish_reason = '', result = '',
      rq_return = '' }, now_ms)
    return 'gone'
  end
  if is_suspect(job) and has_suspect or is_for_faster(job) then
    return 'behind'
  end
  if math.min(job.prompt_tokens + job.max_tokens, number(worker_fields[3], 0)) > cells then
    if job.skips >= MAX_SKIPS then
      return 'stop'
    end
    redis.call('HINCRBY', k_rq_job .. job.id, 'penstock_skips', 1)
    return 'pass'
  end
  return 'lease'
end

local examined, looked_past, cells = 0, 0, cells_free
-- How many owners at the beginning of each set were passed: of the pool's set (''), and of the groups' sets.
local passed = { [''] = 0 }

-- Returns the first job of a queue, after the head, that is not on its last attempt and is not left to a faster worker.
-- The jobs before it keep their places, so each of them runs as soon as a worker runs no other job on its last attempt,
-- or a faster worker claims.
local function first_behind(queue)
  local ids = redis.call('ZRANGE', k_order .. queue, 1, MAX_PASSED)
  for i = 1, math.min(#ids, MAX_LOOKED_PAST - looked_past) do
    looked_past = looked_past + 1
    local job = read_job(ids[i])
    if job and job.state == 'queued' and not is_suspect(job) and not is_for_faster(job) then
      return job
    end
  end
end

-- Returns the least served owner, and its score, of a set's owners that were not passed, or none at the end of a group.
local function least_served(group)
  local first = passed[group] or 0
  return group ~= '' and first >= MAX_PASSED and {}
    or redis.call('ZRANGE', k_active .. slug .. group, first, first, 'WITHSCORES')
end

-- Returns what to do with a tenant whose turn it is, as `decide`, and the job that is to be leased.
local function examine(tenant)
  local queue = tenant .. '.' .. slug
  local id = redis.call('ZRANGE', k_order .. queue, 0, 0)[1]
  local job = id and read_job(id)
  if not job or job.state ~= 'queued' then
    strike(tenant, slug, id or '')
    if id and not job then
      forget(id)
    end
    return 'gone'
  end
  local action = decide(job, cells)
  if action == 'behind' then
    job = first_behind(queue)
    action = job and decide(job, cells) or 'pass'
  end
  return action, job
end

while #ids < room and examined < MAX_EXAMINED do
  examined = examined + 1
  local owner = least_served('')
  if not owner[1] then
    break
  end
  group_in_turn = is_group(owner[1]) and owner[1] or ''
  local candidate = group_in_turn == '' and owner or least_served(group_in_turn)
  local action, job = 'end of group', nil
  if candidate[1] and not belongs_to_set(candidate[1], slug, group_in_turn) then
    action = 'gone'
  elseif candidate[1] then
    action, job = examine(candidate[1])
  end
  if action == 'lease' then
    raise_virtual_time(slug, '', number(owner[2], 0))
    if group_in_turn ~= '' then
      raise_virtual_time(slug, group_in_turn, number(candidate[2], 0))
    end
    if is_suspect(job) then
      has_suspect = true
      redis.call('HSET', worker_key, 'suspect', job.id)
    end
    lease(job, group_in_turn)
    cells = cells - job.prompt_tokens - job.max_tokens
  elseif action == 'pass' then
    passed[group_in_turn] = (passed[group_in_turn] or 0) + 1
  elseif action == 'end of group' and passed[group_in_turn] then
    passed[''] = passed[''] + 1
  elseif action == 'end of group' then
    deactivate(group_in_turn, slug)
  elseif action == 'stop' then
    break
  end
end
if left_to_faster then
  wake_worker(faster.name)
end
if min_wait_ms and degradation == 'on' then
  note_wait(slug, min_wait_ms)
end
if #ids > 0 then
  redis.call('HSET', worker_key, 'claim_id', claim_id, 'claim_ids', table.concat(ids, ' '))
  redis.call('PEXPIRE', worker_key, 60000)
end
return { 'claimed', unpack(answer, 2) }
