-- escalate: moves a running job, whose answer failed the check that its request names, to the queue of a later pool.
-- KEYS pool books rq_job leases tenant events queues
-- ARGV
--   id text · the job
--   token text · the claim token; the job must be running under it
--   prompt_tokens int · number of prompt tokens, both computed and reused
--   cached_tokens int · number of prompt tokens that were reused
--   completion_tokens int · number of generated tokens
--   again_tokens int · number of these tokens that were computed before and were computed again
--   cpu_tokens int · weighted tokens of CPU time
-- ANSWERS moved stays
--   moved: the name of the model of the job's new pool · stays: the job has no later pool that takes it, or has ended,
--   was canceled, has escalated before or is not the caller's; the caller settles it
-- KEEPS 1 2 3 7 8
-- USES clock settings oom_write mark job_record waiting rq stats stream running pool_record doorbell lengths
-- USES generated_weight spending budget counted_claims service

local job = job_record.read_job(id)
if not job or job.state ~= 'running' or token == '' or job.claim ~= token or job.cancel ~= ''
  or now_ms >= job.deadline_ms then
  return { 'stays' }
end

-- Returns the terms of a later pool, with the job's weight and cost there, if it takes the job, or nil. The job was
-- admitted before, so the bounds on queued work do not refuse it.
local function terms_of(pool, is_private)
  local fields = read_fields(k_books .. pool.slug, { 'policy_local', 'policy_prompt_price_micro',
    'policy_answer_price_micro', 'policy_day_cap_micro', 'generated_weight_milli', 'drained_ms' })
  local terms = { weight_milli = generated_weight.weight_of_pool(settings.read_setting('generated_weight'),
    fields.generated_weight_milli) }
  spending.add_terms(terms, fields)
  local is_dear = number(pool.max_price_micro, nil, 0) and spending.most_of(pool, terms) > pool.max_price_micro
  if is_private and fields.policy_local ~= '1' or is_dear or spending.check_budget(pool, terms)
    or not budget.may_use(job, pool.prompt_tokens, pool.max_tokens)
    or redis.call('ZCOUNT', k_pool .. pool.slug, now_ms - LIVE_MS, '+inf') == 0
    or now_ms - number(fields.drained_ms, -LIVE_MS, 0, now_ms) < LIVE_MS then
    return nil
  end
  terms.cost_mwt = math.floor(1000 * pool.prompt_tokens
    + terms.weight_milli * lengths.usual_length(job.tenant, pool.slug, pool.max_tokens))
  return terms
end

-- Returns the first later pool that takes the job, and its terms.
local function next_pool()
  local fields = read_fields(k_rq_job .. id, { 'penstock_later_pools', 'penstock_private' })
  local is_valid, later = pcall(cjson.decode, fields.penstock_later_pools or '[]')
  local is_private = fields.penstock_private == '1' or redis.call('HGET', k_tenant .. job.tenant,
    'policy_private') == '1'
  for _, pool in ipairs(is_valid and type(later) == 'table' and later or {}) do
    local is_whole = type(pool) == 'table' and type(pool.slug) == 'string' and type(pool.model) == 'string'
      and number(pool.prompt_tokens, nil, 0) and number(pool.max_tokens, nil, 1)
    local terms = is_whole and terms_of(pool, is_private)
    if terms then
      return pool, terms, is_private
    end
  end
end

local pool, terms, is_private = next_pool()
if not pool then
  return { 'stays' }
end

-- The run counts in the job's first pool, as if the job had ended there.
if counted_claims.count_claim_once(id, token) then
  counted_claims.count_tokens(job, prompt_tokens, cached_tokens, completion_tokens, again_tokens)
  stats.count('wasted|' .. stats.label_of(job.tenant) .. '|escalated',
    prompt_tokens - cached_tokens + completion_tokens)
end
local cost_mwt = generated_weight.cost_of(job, prompt_tokens - cached_tokens + cpu_tokens, completion_tokens)
if settings.read_setting('fairness') ~= 'turns' then
  service.charge(job, cost_mwt)
end
pool_record.smooth(job.slug, running.run_ms_of(job), cost_mwt)
spending.spend_tokens(job, prompt_tokens, completion_tokens)
spending.return_amount(job)

redis.call('ZREM', k_leases, id)
rq.rq_stop(job.queue, id, job.claim)
running.end_running(job)

local queue = job.tenant .. '.' .. pool.slug
redis.call('HDEL', k_rq_job .. id, 'penstock_later_pools', 'penstock_price', 'penstock_predicted', 'penstock_group',
  'penstock_group_charged_mwt', 'penstock_cut_tokens', 'penstock_cut_tier', 'penstock_skips',
  'penstock_generated_weight_milli', 'penstock_kept_tokens', 'penstock_kept_claim')
-- The run counts as no attempt. Its first token met the start deadline, and no later one has to meet it again.
redis.call('HINCRBY', k_rq_job .. id, 'penstock_attempts', -1)
redis.call('HSET', k_rq_job .. id, 'penstock_state', 'queued', 'penstock_claim', '', 'penstock_worker', '',
  'penstock_charged_mwt', 0, 'penstock_started_ms', '', 'penstock_requeued_at_ms', now_ms, 'penstock_eta_ms', '',
  'penstock_start_within_ms', 0, 'penstock_slug', pool.slug, 'penstock_model', pool.model,
  'penstock_prompt_tokens', pool.prompt_tokens, 'penstock_max_tokens', pool.max_tokens,
  'penstock_cost_mwt', whole(terms.cost_mwt), 'penstock_routed', 'escalated',
  'status', 'queued', 'origin', queue, 'worker_name', '', 'started_at', '')
-- A tenant that has become private since the admission is so for the rest of the job, too.
if is_private then
  redis.call('HSET', k_rq_job .. id, 'penstock_private', 1)
end
generated_weight.keep_weight(k_rq_job .. id, terms.weight_milli)
spending.hold_amount(pool, terms, job.tenant, id)
budget.reserve_anew(job, pool.prompt_tokens, pool.max_tokens)
stream.add_requeued(k_events .. id)
redis.call('PEXPIRE', k_events .. id, math.max(60000, job.deadline_ms - now_ms + 60000))
waiting.enlist({ id = id, tenant = job.tenant, slug = pool.slug, queue = queue, prompt_tokens = pool.prompt_tokens,
  max_tokens = pool.max_tokens, cost_mwt = terms.cost_mwt, key_id = job.key_id, wanted_ms = job.deadline_ms,
  latest_us = job.latest_us, priority = job.priority })
redis.call('ZADD', k_queues, job.deadline_ms + 1000 * settings.read_setting('result_ttl_s'), queue)
doorbell.ring(pool.slug, job.tenant, '')
local route = redis.call('HGET', k_rq_job .. id, 'penstock_route')
stats.count('routed|' .. (route or '') .. '|' .. pool.model .. '|escalated')
return { 'moved', pool.model }
