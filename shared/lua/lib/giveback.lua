-- giveback: a running job goes back to its tenant's list, with its admission, deadline and place.
-- KEYS leases events tenant rq_job
-- KEEPS 1 2 3 7 8
-- USES job waiting rq stats stream books doorbell

-- Whether its claim has told a first token. From then on it is wanted until its deadline, whoever runs it again.
local function has_begun(job)
  local last = redis.pcall('XREVRANGE', k_events .. job.id, '+', '-', 'COUNT', 1)[1]
  return type(last) == 'table' and last[2][2] == 'token'
end

-- Requeues whatever the bounds say: it was admitted. `counted` is false when the attempt was no fault of the job.
local function give_back(job, counted, now_ms)
  redis.call('ZREM', k_leases, job.id)
  rq_stop(job.queue, job.id, job.claim)
  redis.call('HINCRBY', k_tenant .. job.tenant, 'running', -1)
  book(job.slug, 'running', -1)
  if not counted then
    redis.call('HINCRBY', k_rq_job .. job.id, 'penstock_attempts', -1)
  end
  redis.call('HSET', k_rq_job .. job.id, 'penstock_state', 'queued', 'penstock_claim', '', 'penstock_worker', '',
    'penstock_charged_mwt', 0, 'penstock_started_ms', '', 'penstock_requeued_at_ms', now_ms, 'status', 'queued', 'worker_name', '', 'started_at', '')
  if job.start_within_ms > 0 and has_begun(job) then
    redis.call('HSET', k_rq_job .. job.id, 'penstock_start_within_ms', 0)
    job.wanted_ms = job.deadline_ms
  end
  add_entry(k_events .. job.id, '*', 'type', 'requeued')
  redis.call('PEXPIRE', k_events .. job.id, math.max(60000, job.deadline_ms - now_ms + 60000))
  serve(job.tenant, -job.charged_mwt)
  enlist(job)
  ring(job.slug)
  count('requeued')
end
