-- claim: leases the next jobs of a pool to one worker, in turns across tenants by service received.
-- KEYS config worker books active order leases payload rq_job tenant events rq_workers_of rq_worker
-- ARGV
--   worker text · who asks
--   claim_id text · the fencing token of all that is claimed; the same id again answers what still carries it
--   slug text · the pool's model as it stands in keys
--   room int · free slots
--   cells_free int · free KV cells
-- ANSWERS claimed
--   claimed: per job id, payload or '', attempt, ms to the deadline, ms to the latest first token or -1, tenant,
--   model, prompt tokens, max tokens, cancel, traceparent
-- KEEPS 1 2 3 5 7 8
-- USES clock afford job waiting rq stats stream books lengths tier finish forget
-- RARELY finish forget strike note_wait

-- At most this many entries are looked at in one call, whatever they turn out to be.
local MAX_LOOKS = 64
-- A job whose cells do not fit is passed over this often; then the slot is kept for it.
local MAX_SKIPS = 8
-- Heads that can no longer be answered in time, ended in one call.
local MAX_CONDEMNED = 32

local worker_key = k_worker .. worker
local me = redis.call('HMGET', worker_key, 'claim_id', 'claim_ids', 'cells', 'suspect')
local lease_ms, max_attempts, fairness, admission, degradation, margin = unpack(redis.call('HMGET', k_config, 'lease_ms',
  'max_attempts', 'fairness', 'admission', 'degradation', 'admission_safety_margin'))
lease_ms, max_attempts, margin = tonumber(lease_ms or 15000), tonumber(max_attempts or 3), tonumber(margin or 0.8)
local answer, ids = { 'claimed' }, {}

-- Rates of the pool, or nil; only in full admission.
local known = redis.call('HMGET', k_books .. slug, 'v', 'prefill_tps', 'tpot_ms', 'rates_ms', 'tier', 'tier_look_ms')
local virtual = tonumber(known[1] or 0)
local prefill_tps, tpot_ms = tonumber(known[2] or 0) or 0, tonumber(known[3] or 0) or 0
local rated = admission == 'full' and now_ms - (tonumber(known[4] or 0) or 0) <= RATES_MS and prefill_tps > 0
local tier = degradation == 'on' and rated and tier_in_force(known[5], known[6]) or 0
local least_wait_ms

local function hand_over(job)
  -- A claim that is told again tells the same.
  job.max_tokens = job.cut_tokens > 0 and job.cut_tokens or job.max_tokens
  local traceparent = redis.call('HGET', k_rq_job .. job.id, 'penstock_traceparent')
  local start_in_ms = job.start_within_ms > 0 and math.max(0, job.admitted_ms + job.start_within_ms - now_ms) or -1
  local payload = redis.pcall('GET', k_payload .. job.id)
  answer[#answer + 1] = { job.id, type(payload) == 'string' and payload or '', job.attempts, job.deadline_ms - now_ms,
    start_in_ms, job.tenant, job.model, job.prompt_tokens, job.max_tokens, job.cancel, traceparent or '' }
end

if me[1] == claim_id then
  for id in string.gmatch(me[2] or '', '%S+') do
    local job = read_job(id)
    if job and job.state == 'running' and job.claim == claim_id then
      hand_over(job)
    end
  end
  return { 'claimed', unpack(answer, 2) }
end

-- What a claim charges: the estimated cost, or one turn; by the tenant's weight. Settle makes it true.
local function charge_of(job)
  return by_weight(job.tenant, fairness == 'turns' and 1000 or job.cost_mwt)
end

-- The tier that a job is run at: 0 when it may not be changed; what it was admitted at still holds.
local function tier_for(job)
  return job.degrade >= 0 and math.max(tier, job.degrade) or 0
end

-- From tier 1 on an answer may take what is left of its patience, by the pool's rates, and is cut to that.
local function cut(job)
  local at, before = tier_for(job), job.cut_tokens
  local left_ms = margin * (job.deadline_ms - now_ms) - 1000 * job.prompt_tokens / prefill_tps
  local fitting = math.max(SHORTEST_ANSWER, math.floor(left_ms / math.max(0.001, tpot_ms)))
  -- What was taken for its short answer gets that, also by rates that nobody has told for a while.
  local by_rates = rated or job.degrade > 0 and prefill_tps > 0
  job.cut_tokens = at > 0 and by_rates and fitting < job.max_tokens and fitting or 0
  if job.cut_tokens > 0 then
    redis.call('HSET', k_rq_job .. job.id, 'penstock_cut_tokens', job.cut_tokens, 'penstock_cut_tier', at)
    if before == 0 then
      count('degraded|' .. label_of(job.tenant) .. '|max_tokens')
    end
  elseif before > 0 then
    redis.call('HDEL', k_rq_job .. job.id, 'penstock_cut_tokens', 'penstock_cut_tier')
  end
end

local function lease(job)
  delist(job)
  job.attempts = job.attempts + 1
  if job.degrade >= 0 then
    cut(job)
  end
  local charge_mwt = charge_of(job)
  redis.call('ZADD', k_leases, now_ms + lease_ms, job.id)
  redis.call('HINCRBY', k_tenant .. job.tenant, 'running', 1)
  book(slug, 'running', 1)
  redis.call('HSET', k_rq_job .. job.id, 'penstock_state', 'running', 'penstock_claim', claim_id, 'penstock_worker', worker,
    'penstock_attempts', job.attempts, 'penstock_charged_mwt', charge_mwt, 'penstock_started_ms', now_ms,
    'status', 'started', 'worker_name', worker, 'started_at', iso(now_ms), 'last_heartbeat', iso(now_ms))
  if redis.call('HSETNX', k_rq_job .. job.id, 'penstock_first_claim_ms', now_ms) == 1 then
    local label = label_of(job.tenant)
    count('executed')
    count('executed|' .. label .. '|' .. job.model)
    observe('queue_wait|' .. label .. '|' .. job.model, now_ms - job.admitted_ms)
  elseif job.requeued_at_ms > 0 then
    redis.call('HINCRBY', k_rq_job .. job.id, 'penstock_requeued_ms', now_ms - job.requeued_at_ms)
  end
  rq_start(job.queue, job.id, claim_id, now_ms)
  redis.call('SADD', k_rq_workers_of .. job.queue, k_rq_worker .. worker)
  add_entry(k_events .. job.id, '*', 'type', 'started', 'attempt', job.attempts)
  redis.call('PEXPIRE', k_events .. job.id, math.max(60000, job.deadline_ms - now_ms + 2 * lease_ms))
  serve(job.tenant, charge_mwt)
  local waited_ms = now_ms - math.max(job.admitted_ms, job.requeued_at_ms)
  least_wait_ms = math.min(least_wait_ms or waited_ms, waited_ms)
  ids[#ids + 1] = job.id
  hand_over(job)
end

-- A job on its last attempt runs only where no other such job runs: eight jobs that die with a poison one
-- must not all be called poison.
local function is_suspect(job)
  return max_attempts > 1 and job.attempts >= max_attempts - 1
end

local suspect_held = false
if me[4] and me[4] ~= '' then
  local held = read_job(me[4])
  suspect_held = held and held.state == 'running' and held.worker == worker
end

-- Whether even a short answer (the 20th percentile of its tenant's) can no longer be ready in time. Nobody is
-- judged by fewer than 8 answers, and nobody while a slot would otherwise stay empty.
local condemned = 0
local function is_hopeless(job)
  local left_ms = job.deadline_ms - now_ms
  if not rated or condemned >= MAX_CONDEMNED
    or 1000 * job.prompt_tokens / prefill_tps + job.max_tokens * tpot_ms <= left_ms then
    return false
  end
  local lengths = redis.call('HMGET', k_tenant .. job.tenant, 'len_n', 'len_p20')
  local shortest = math.min(job.max_tokens, tonumber(lengths[2] or 0) or 0)
  if tier_for(job) > 0 then
    shortest = math.min(shortest, SHORTEST_ANSWER)
  end
  if (tonumber(lengths[1] or 0) or 0) < LENGTHS_BELIEVED
    or 1000 * job.prompt_tokens / prefill_tps + shortest * tpot_ms <= left_ms then
    return false
  end
  return redis.call('ZCARD', k_active .. slug) > 1 or redis.call('ZCARD', k_order .. job.queue) > 1
end

-- lease, pass (look at the next tenant), gone (the head was removed) or stop (the slot is kept).
local function judge(job, cells)
  if job.wanted_ms <= now_ms then
    finish(job, { outcome = 'expired', code = 'deadline_exceeded', stage = 'queue', finish_reason = '', result = '',
      rq_return = '' }, now_ms)
    return 'gone'
  end
  if is_hopeless(job) then
    condemned = condemned + 1
    finish(job, { outcome = 'expired', code = 'deadline_unmeetable', stage = 'queue', finish_reason = '', result = '',
      rq_return = '' }, now_ms)
    return 'gone'
  end
  if is_suspect(job) and suspect_held then
    return 'pass'
  end
  if math.min(job.prompt_tokens + job.max_tokens, tonumber(me[3] or 0)) > cells then
    if job.skips >= MAX_SKIPS then
      return 'stop'
    end
    redis.call('HINCRBY', k_rq_job .. job.id, 'penstock_skips', 1)
    return 'pass'
  end
  return 'lease'
end

local looks, passed, cells = 0, 0, cells_free
while #ids < room and looks < MAX_LOOKS do
  looks = looks + 1
  local next_up = redis.call('ZRANGE', k_active .. slug, passed, passed, 'WITHSCORES')
  if not next_up[1] then
    break
  end
  local queue = next_up[1] .. '.' .. slug
  local id = redis.call('ZRANGE', k_order .. queue, 0, 0)[1]
  local job = id and read_job(id)
  local verdict = 'gone'
  if job and job.state == 'queued' then
    verdict = judge(job, cells)
  else
    strike(next_up[1], slug, id or '')
    if id and not job then
      forget(id)
    end
  end
  if verdict == 'lease' then
    -- The virtual time is the service at which the pool last began a job; it never goes back.
    if tonumber(next_up[2]) > virtual then
      virtual = tonumber(next_up[2])
      redis.call('HSET', k_books .. slug, 'v', whole(virtual))
    end
    if is_suspect(job) then
      suspect_held = true
      redis.call('HSET', worker_key, 'suspect', id)
    end
    lease(job)
    cells = cells - job.prompt_tokens - job.max_tokens
  elseif verdict == 'pass' then
    passed = passed + 1
  elseif verdict == 'stop' then
    break
  end
end
if least_wait_ms and degradation == 'on' then
  note_wait(slug, least_wait_ms)
end
if #ids > 0 then
  redis.call('HSET', worker_key, 'claim_id', claim_id, 'claim_ids', table.concat(ids, ' '))
  redis.call('PEXPIRE', worker_key, 60000)
end
return { 'claimed', unpack(answer, 2) }
