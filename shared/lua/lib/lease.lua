-- lease: leases a queued job to a worker, and tells the worker what it needs to run the job.
-- KEYS leases payload events rq_job rq_workers_of rq_worker
-- KEEPS 1 2 3 5 7 8
-- USES clock settings job waiting turns rq stats stream eta running

-- Returns what a claim tells of a job: id, payload, attempt and so on. The answer's length is the one to which it is cut,
-- if it is cut.
local function description_of(job)
  local traceparent = redis.call('HGET', k_rq_job .. job.id, 'penstock_traceparent')
  local start_in_ms = job.start_within_ms > 0 and math.max(0, job.admitted_ms + job.start_within_ms - now_ms) or -1
  local payload = redis.pcall('GET', k_payload .. job.id)
  return { job.id, type(payload) == 'string' and payload or '', job.attempts, job.deadline_ms - now_ms,
    start_in_ms, job.tenant, job.model, job.prompt_tokens, job.cut_tokens > 0 and job.cut_tokens or job.max_tokens,
    job.cancel, traceparent or '' }
end

-- Leases a job to the worker under the claim, and charges its tenant, and the group in which the tenant has its turn ('' for
-- none), `cost_mwt`. Returns how long the job has waited.
local function lease(job, group, worker, claim_id, cost_mwt)
  local lease_ms = read_settings('lease_ms')
  delist(job)
  job.attempts = job.attempts + 1
  job.group, job.charged_mwt, job.group_charged_mwt = group, 0, 0
  charge(job, cost_mwt)
  redis.call('ZADD', k_leases, now_ms + lease_ms, job.id)
  begin_running(job)
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
      learn_wait(job.slug, prediction, now_ms - job.admitted_ms)
    end
  elseif job.requeued_at_ms > 0 then
    redis.call('HINCRBY', k_rq_job .. job.id, 'penstock_requeued_ms', now_ms - job.requeued_at_ms)
  end
  rq_start(job.queue, job.id, claim_id, now_ms)
  redis.call('SADD', k_rq_workers_of .. job.queue, k_rq_worker .. worker)
  add_entry(k_events .. job.id, '*', 'type', 'started', 'attempt', job.attempts)
  redis.call('PEXPIRE', k_events .. job.id, math.max(60000, job.deadline_ms - now_ms + 2 * lease_ms))
  return now_ms - math.max(job.admitted_ms, job.requeued_at_ms)
end
