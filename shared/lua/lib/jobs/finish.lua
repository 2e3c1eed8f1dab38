-- finish: ends a queued or running job; no other code ends jobs.
-- KEYS inflight leases polls payload partial result events queues rq_job rq_finished rq_failed
--      rq_canceled rq_results
-- KEEPS 1 2 4 6 8 9 13
-- USES clock settings waiting rq stats stream running index tenant_bytes predictions spending usage budget webhook
-- USES job_record

-- RQ has no status `expired` and allows no new statuses, so an expired job gets RQ's status `failed`.
local RQ_STATUS = { succeeded = 'finished', failed = 'failed', expired = 'failed', canceled = 'canceled' }
local RQ_REGISTRY = { succeeded = k_rq_finished, failed = k_rq_failed, expired = k_rq_failed, canceled = k_rq_canceled }
-- A job's event stream is kept this long after the job ends, for clients that follow it. Later reads use the result.
local EVENTS_TTL_S = 60

-- Keeps the request of an ended job as long as its record, for requests that continue it, or to run it again. Returns
-- its length.
local function keep_request(id, ttl_s)
  redis.call('EXPIRE', k_payload .. id, ttl_s)
  local length = redis.pcall('STRLEN', k_payload .. id)
  return type(length) == 'number' and length or 0
end

-- Ends the job. `ending` has the fields outcome, code, stage and finish_reason; result (JSON) and rq_return (base64 of
-- JSON), if there are any; and, if clients are told tokens, their numbers: prompt, cached and completion.
local function end_job(job, ending, now_ms)
  local id, result, ttl_s = job.id, ending.result or '', settings.read_setting('result_ttl_s')
  local asked = job_record.facts_of(job)
  if job.state == 'running' then
    redis.call('ZREM', k_leases, id)
    rq.rq_stop(job.queue, id, job.claim)
    running.end_running(job)
  else
    waiting.delist(job)
  end
  redis.call('ZREM', k_inflight, id)
  redis.call('ZREM', k_polls, id)
  redis.call('DEL', k_partial .. id)
  local request_bytes = 0
  if asked.penstock_keeps_always == '1' or asked.penstock_keeps_request == '1' and ending.outcome == 'succeeded' then
    request_bytes = keep_request(id, ttl_s)
  else
    redis.call('DEL', k_payload .. id)
  end
  spending.return_amount(job)

  local entries = redis.pcall('XLEN', k_events .. id)
  entries = type(entries) == 'number' and entries or 0
  -- A stream with more than one entry also contains the text of the result.
  local bytes, kept_s = tenant_bytes.keep_ended(job, #result + request_bytes, entries > 1
    and #result or 0, entries, ttl_s, EVENTS_TTL_S)
  redis.call('HSET', k_rq_job .. id, 'penstock_state', ending.outcome, 'penstock_code', ending.code,
    'penstock_stage', ending.stage, 'penstock_finish_reason', ending.finish_reason, 'penstock_ended_ms', now_ms,
    'status', RQ_STATUS[ending.outcome], 'ended_at', rq.iso(now_ms), 'penstock_bytes', whole(bytes),
    'penstock_kept_s', whole(kept_s))
  if (ending.completion or 0) > 0 then
    redis.call('HSET', k_rq_job .. id, 'penstock_answer_tokens', whole(ending.completion))
  end
  redis.call('EXPIRE', k_rq_job .. id, ttl_s)
  if result ~= '' then
    redis.call('SET', k_result .. id, result, 'EX', ttl_s)
  end

  local entry = { 'type', ending.outcome == 'succeeded' and 1 or 2, 'worker_name', job.worker }
  if (ending.rq_return or '') ~= '' then
    entry[#entry + 1] = 'return_value'
    entry[#entry + 1] = ending.rq_return
  end
  local exc = ending.code ~= '' and rq.rq_exc(ending.code)
  if exc then
    entry[#entry + 1] = 'exc_string'
    entry[#entry + 1] = exc
  end
  stream.add_entry(k_rq_results .. id, 'MAXLEN', 10, '*', unpack(entry))
  redis.call('EXPIRE', k_rq_results .. id, ttl_s)
  local registry, now_s = RQ_REGISTRY[ending.outcome] .. job.queue, math.floor(now_ms / 1000)
  -- One call in eight removes the registry's expired entries, which is often enough to keep the registry short.
  if now_us % 8 == 0 then
    redis.call('ZREMRANGEBYSCORE', registry, 0, now_s)
  end
  -- RQ's scores are whole seconds, and its cleanup removes a score that equals the current second: rounded up, so that
  -- the entry lasts as long as the record.
  redis.call('ZADD', registry, math.ceil(now_ms / 1000) + ttl_s, id)
  redis.call('EXPIRE', registry, ttl_s)

  stream.add_entry(k_events .. id, '*', 'type', 'ended', 'outcome', ending.outcome)
  redis.call('EXPIRE', k_events .. id, EVENTS_TTL_S)
  redis.call('ZADD', k_queues, now_ms + ttl_s * 1000, job.queue)
  index.keep_index(job.tenant, ttl_s * 1000)

  local label = stats.label_of(job.tenant)
  stats.count('ended|' .. ending.outcome)
  stats.count('ended|' .. label .. '|' .. job.model .. '|' .. ending.outcome)
  stats.observe('request_duration|' .. ending.outcome .. '|' .. label .. '|' .. job.model, now_ms - job.admitted_ms, id)
  predictions.judge_promise(job, ending, now_ms)
  usage.add_usage(job, { [ending.outcome] = 1, prompt = ending.prompt, cached = ending.cached,
    completion = ending.completion })
  budget.settle_tokens(job, ending.prompt or 0, ending.completion or 0)
  if asked.penstock_callback_url then
    webhook.tell_end(job.tenant, id, 'job', asked.penstock_callback_url, redis.call('HGETALL', k_rq_job .. id),
      result)
  end
end
