-- finish: ends a job, from wherever it is; the only place that does.
-- KEYS config inflight leases polls payload result events queues jobs tenant rq_job rq_finished rq_failed
--      rq_canceled rq_results
-- KEEPS 1 2 4 6 8 9
-- USES clock job waiting rq stats stream books

-- RQ's closed set of statuses: expired counts among its failed.
local RQ_STATUS = { succeeded = 'finished', failed = 'failed', expired = 'failed', canceled = 'canceled' }
local RQ_REGISTRY = { succeeded = k_rq_finished, failed = k_rq_failed, expired = k_rq_failed, canceled = k_rq_canceled }
-- How long the stream stays for followers; later readers are served by the result.
local EVENTS_TTL_S = 60

-- how: outcome, code, stage, finish_reason, result (JSON or ''), rq_return (base64 of JSON or '').
local function finish(job, how, now_ms)
  local id, ttl_s = job.id, tonumber(redis.call('HGET', k_config, 'result_ttl_s') or 3600)
  if job.state == 'running' then
    redis.call('ZREM', k_leases, id)
    rq_stop(job.queue, id, job.claim)
    redis.call('HINCRBY', k_tenant .. job.tenant, 'running', -1)
    book(job.slug, 'running', -1)
  else
    delist(job)
  end
  redis.call('ZREM', k_inflight, id)
  redis.call('ZREM', k_polls, id)
  redis.call('DEL', k_payload .. id)

  redis.call('HSET', k_rq_job .. id, 'penstock_state', how.outcome, 'penstock_code', how.code, 'penstock_stage', how.stage,
    'penstock_finish_reason', how.finish_reason, 'penstock_ended_ms', now_ms, 'status', RQ_STATUS[how.outcome],
    'ended_at', iso(now_ms))
  redis.call('EXPIRE', k_rq_job .. id, ttl_s)
  if how.result ~= '' then
    redis.call('SET', k_result .. id, how.result, 'EX', ttl_s)
  end

  local entry = { 'type', how.outcome == 'succeeded' and 1 or 2, 'worker_name', job.worker }
  if how.rq_return ~= '' then
    entry[#entry + 1] = 'return_value'
    entry[#entry + 1] = how.rq_return
  end
  local exc = how.code ~= '' and rq_exc(how.code)
  if exc then
    entry[#entry + 1] = 'exc_string'
    entry[#entry + 1] = exc
  end
  add_entry(k_rq_results .. id, 'MAXLEN', 10, '*', unpack(entry))
  redis.call('EXPIRE', k_rq_results .. id, ttl_s)
  local registry, now_s = RQ_REGISTRY[how.outcome] .. job.queue, math.floor(now_ms / 1000)
  -- Now and then: one end in eight trims more than eight ends add.
  if now_us % 8 == 0 then
    redis.call('ZREMRANGEBYSCORE', registry, 0, now_s)
  end
  redis.call('ZADD', registry, now_s + ttl_s, id)
  redis.call('EXPIRE', registry, ttl_s)

  add_entry(k_events .. id, '*', 'type', 'ended', 'outcome', how.outcome)
  redis.call('EXPIRE', k_events .. id, EVENTS_TTL_S)
  redis.call('ZADD', k_queues, now_ms + ttl_s * 1000, job.queue)
  redis.call('EXPIRE', k_jobs .. job.tenant, ttl_s + 86400)

  local label = label_of(job.tenant)
  count('ended|' .. how.outcome)
  count('ended|' .. label .. '|' .. job.model .. '|' .. how.outcome)
  observe('request_duration|' .. how.outcome .. '|' .. label .. '|' .. job.model, now_ms - job.admitted_ms)
end
