-- settle: ends a job once, by the holder of its lease; the store has the last word on cancel and deadline.
-- KEYS tenant books rq_job config rq_worker
-- ARGV
--   id text · the job
--   token text · the claim that must hold it
--   worker text · who settles
--   outcome text · as the worker saw it; '' ends nothing: the job is no longer this worker's, what it computed is counted
--   finish_reason text · stop, length, deadline, canceled or ''
--   code text · what went wrong, or ''
--   stage text · prefill or decode, or ''
--   cost_mwt int · true cost in thousandths of a weighted token
--   prompt_tokens int · computed, or there before
--   cached_tokens int · of these, not computed again
--   completion_tokens int · true count
--   ttft_ms int · from the claim to the first token, -1 for none
--   decode_ms int · from the first token to the last, -1 for none
--   result text · text, usage and message as JSON
--   rq_return text · usage as RQ keeps it
-- ANSWERS settled already lost gone
--   settled: outcome · already: outcome
-- KEEPS 1 2 4 8
-- USES clock afford job waiting rq stats books lengths finish
-- RARELY delist rq_exc

-- A success may arrive this late and still be one; the door, too, waits this long.
local GRACE_MS = 1000

local job = read_job(id)
if not job then
  return { 'gone' }
end
local computed = prompt_tokens - cached_tokens + completion_tokens
local label = label_of(job.tenant)
local where = label .. '|' .. job.model
local function count_tokens()
  count('tokens|' .. where .. '|prompt', prompt_tokens)
  if cached_tokens > 0 then
    count('tokens|' .. where .. '|cached', cached_tokens)
  end
  count('tokens|' .. where .. '|completion', completion_tokens)
end
if outcome == '' or token == '' or job.claim ~= token then
  -- Once for each claim, however often it is told.
  if computed > 0 and redis.call('HSETNX', k_rq_job .. id, 'penstock_told_' .. token, 1) == 1 then
    local own_end = job.claim == token and job.state ~= 'running' and job.state ~= 'queued' and job.state ~= 'succeeded'
    count_tokens()
    count('wasted|' .. label .. '|' .. (own_end and (job.cancel == 'abandoned' and 'abandoned' or job.state) or 'retried'), computed)
  end
  return { 'lost' }
end
if job.state ~= 'running' then
  return { 'already', job.state }
end

local how = { outcome = outcome, code = code, stage = stage, finish_reason = finish_reason, result = result,
  rq_return = rq_return }
if job.cancel ~= '' then
  how.outcome, how.code, how.finish_reason = 'canceled', job.cancel, 'canceled'
elseif outcome == 'succeeded' and now_ms > job.deadline_ms + GRACE_MS then
  how.outcome, how.code, how.stage, how.finish_reason = 'expired', 'deadline_exceeded', 'decode', 'deadline'
end

-- The estimate charged at the claim becomes the true cost. In turns mode a turn is a turn.
local fairness = redis.call('HGET', k_config, 'fairness')
if fairness ~= 'turns' then
  serve(job.tenant, by_weight(job.tenant, cost_mwt) - job.charged_mwt)
end

count_tokens()
if how.outcome ~= 'succeeded' and computed > 0 then
  count('wasted|' .. label .. '|' .. (how.code == 'abandoned' and 'abandoned' or how.outcome), computed)
end
if ttft_ms >= 0 then
  local size = prompt_tokens < 256 and 's' or prompt_tokens < 2048 and 'm' or 'l'
  observe('time_to_first_token|' .. where .. '|' .. size, ttft_ms)
  if decode_ms >= 0 and completion_tokens > 1 then
    observe('time_per_output_token|' .. where, decode_ms / (completion_tokens - 1))
  end
end
if how.outcome == 'succeeded' then
  local moments = redis.call('HMGET', k_rq_job .. id, 'penstock_started_ms', 'penstock_eta_ms')
  smooth(job.slug, math.max(1, now_ms - (tonumber(moments[1] or 0) or now_ms)), cost_mwt)
  learn(k_tenant .. job.tenant, completion_tokens)
  -- A pool sees many answers: once it knows enough, one in eight says as much of them.
  if now_us % 8 == 0 or tonumber(redis.call('HGET', k_books .. job.slug, 'len_n') or 0) < LENGTHS_KEPT / 2 then
    learn(k_books .. job.slug, completion_tokens)
  end
  if tonumber(moments[2] or '') then
    observe('prediction_error', math.abs(now_ms - tonumber(moments[2])))
  end
end
finish(job, how, now_ms)
if redis.call('EXISTS', k_rq_worker .. worker) == 1 then
  redis.call('HINCRBY', k_rq_worker .. worker, how.outcome == 'succeeded' and 'successful_job_count' or 'failed_job_count', 1)
end
return { 'settled', how.outcome }
