-- lease: leases a queued job to a worker, and returns the facts that the worker needs to run it.
-- KEYS leases payload events rq_job rq_workers_of rq_worker
-- KEEPS 1 2 3 5 7 8
-- USES clock settings waiting rq stats eta running generated_weight partial deferral service

-- Returns the description of a claimed job for its worker: id, payload, attempt and so on. The answer's length is that
-- after a cut.
local function description_of(job, fingerprint)
  local start_in_ms = job.start_within_ms > 0 and math.max(0, job.admitted_ms + job.start_within_ms - now_ms) or -1
  local payload = redis.pcall('GET', k_payload .. job.id)
  return { job.id, type(payload) == 'string' and payload or '', job.attempts, job.deadline_ms - now_ms,
    start_in_ms, job.tenant, job.model, job.prompt_tokens, job.cut_tokens > 0 and job.cut_tokens or job.max_tokens,
    job.cancel, job.traceparent, job.ids or partial.read_ids(job.id, job.claim, fingerprint),
    job.key_label, math.max(0, now_ms - math.max(job.admitted_ms, job.requeued_at_ms)), job.followed }
end

-- Returns the charge for a job when it is claimed, including the charge for its kept tokens.
local function first_charge_of(job, worker_pauses)
  if settings.read_setting('fairness') == 'turns' then
    return 1000
  end
  return worker_pauses and generated_weight.cost_of(job, job.prompt_tokens, job.kept_tokens) or job.cost_mwt
end

-- Leases a job to the worker under the claim, and charges its tenant, and the group in which the tenant has its turn
-- ('' for none). `worker` is the worker's name, `fingerprint` that of its model, and `worker_pauses` says whether its
-- jobs may be paused. Returns how long the job has waited.
local function lease_job(job, group, worker, claim_id, fingerprint, worker_pauses)
  local lease_ms = settings.read_setting('lease_ms')
  waiting.delist(job)
  job.attempts = job.attempts + 1
  partial.take_up(job, group, claim_id, fingerprint)
  deferral.end_deferral(job)
  service.charge(job, first_charge_of(job, worker_pauses))
  redis.call('ZADD', k_leases, now_ms + lease_ms, job.id)
  running.begin_running(job)
  redis.call('HSET', k_rq_job .. job.id, 'penstock_state', 'running', 'penstock_claim', claim_id,
    'penstock_worker', worker, 'penstock_attempts', job.attempts, 'penstock_charged_mwt', whole(job.charged_mwt),
    'penstock_started_ms', now_ms,
    'status', 'started', 'worker_name', worker, 'started_at', rq.iso(now_ms), 'last_heartbeat', rq.iso(now_ms))
  if group ~= '' then
    redis.call('HSET', k_rq_job .. job.id, 'penstock_group', group,
      'penstock_group_charged_mwt', whole(job.group_charged_mwt))
  end
  if redis.call('HSETNX', k_rq_job .. job.id, 'penstock_first_claim_ms', now_ms) == 1 then
    local label = stats.label_of(job.tenant)
    stats.count('executed')
    stats.count('executed|' .. label .. '|' .. job.model)
    stats.observe('queue_wait|' .. label .. '|' .. job.model, now_ms - job.admitted_ms, job.id)
    local prediction = eta.prediction_of(job)
    if prediction then
      eta.learn_wait(job.slug, prediction, now_ms - job.admitted_ms)
    end
  elseif job.requeued_at_ms > 0 then
    redis.call('HINCRBY', k_rq_job .. job.id, 'penstock_requeued_ms', now_ms - job.requeued_at_ms)
    running.note_earlier_pauses(job)
  end
  rq.rq_start(job.queue, job.id, claim_id, now_ms)
  redis.call('SADD', k_rq_workers_of .. job.queue, k_rq_worker .. worker)
  partial.note_start(job)
  redis.call('PEXPIRE', k_events .. job.id, math.max(60000, job.deadline_ms - now_ms + 2 * lease_ms))
  return now_ms - math.max(job.admitted_ms, job.requeued_at_ms)
end
