-- giveback: puts a running job back into its queue with the tokens it has; admission time, deadline and sort key stay.
-- KEYS leases events rq_job
-- KEEPS 1 2 3 7 8
-- USES settings waiting rq stats stream running doorbell partial service

-- Whether the claim that ends here has shown a first text. If so, the start deadline was met, and no later claim
-- has to meet it again.
local function has_shown_text(job)
  local _, last_type = stream.type_of_entry(redis.pcall('XREVRANGE', k_events .. job.id, '+', '-', 'COUNT', 1), 1)
  return last_type == 'token'
end

-- Requeues the job even if its tenant has reached the bound on queued jobs, because the job was admitted before.
-- `counts_as_attempt` is false if the attempt did not fail: the worker drains, or could not run the job.
local function give_back(job, counts_as_attempt, now_ms)
  redis.call('ZREM', k_leases, job.id)
  rq.rq_stop(job.queue, job.id, job.claim)
  if not counts_as_attempt then
    redis.call('HINCRBY', k_rq_job .. job.id, 'penstock_attempts', -1)
  end
  local kept_mwt = partial.keep_ids(job)
  service.charge(job, settings.read_setting('fairness') ~= 'turns' and kept_mwt or 0)
  redis.call('HSET', k_rq_job .. job.id, 'penstock_state', 'queued', 'penstock_claim', '', 'penstock_worker', '',
    'penstock_charged_mwt', whole(job.charged_mwt), 'penstock_started_ms', '', 'penstock_requeued_at_ms', now_ms,
    'status', 'queued', 'worker_name', '', 'started_at', '')
  if job.start_within_ms > 0 and (job.kept_tokens > 0 or has_shown_text(job)) then
    redis.call('HSET', k_rq_job .. job.id, 'penstock_start_within_ms', 0)
    job.wanted_ms = job.deadline_ms
  end
  stream.add_requeued(k_events .. job.id)
  redis.call('PEXPIRE', k_events .. job.id, math.max(60000, job.deadline_ms - now_ms + 60000))
  if job.group ~= '' and job.group_charged_mwt > 0 then
    redis.call('HSET', k_rq_job .. job.id, 'penstock_group_charged_mwt', whole(job.group_charged_mwt))
  elseif job.group ~= '' then
    redis.call('HDEL', k_rq_job .. job.id, 'penstock_group', 'penstock_group_charged_mwt')
  end
  waiting.enlist(job)
  running.end_running(job)
  doorbell.ring(job.slug, job.tenant, '')
  stats.count('requeued')
end
