-- settle: ends a job, once, for the worker that holds its lease; a cancel or a passed deadline overrides the outcome.
-- KEYS rq_job rq_worker
-- ARGV
--   id text · the job
--   token text · the claim token; the job must be running under it
--   worker text · the worker that settles
--   outcome text · the outcome that the worker reports; '' only to count the tokens of a job that it has lost
--   finish_reason text · stop, length, deadline, canceled or ''
--   code text · error code, or ''
--   stage text · where the error happened: prefill, decode or ''
--   prompt_tokens int · number of prompt tokens, both computed and reused
--   cached_tokens int · number of prompt tokens that were reused
--   completion_tokens int · number of generated tokens, those of earlier attempts that were kept included
--   again_tokens int · number of these tokens that were computed before and were computed again
--   cpu_tokens int · weighted tokens of CPU time
--   ttft_ms int · ms from the claim to the first token of this attempt, -1 for none
--   decode_ms int · ms from the first token to the last, -1 for none
--   result text · text, usage and message as JSON
--   rq_return text · usage, in RQ's format for a job's return value
-- ANSWERS settled already lost gone
--   settled: the outcome that this call wrote · already: the outcome that an earlier call wrote
-- KEEPS 1 2 4 8
-- USES clock settings oom_write mark job_record stats running pool_record learning predictions finish
-- USES generated_weight spending counted_claims service history
-- RARELY amount_of count_claim_once delist end_pause keep_request restore_service rq_exc spend tell_end
-- RARELY unrecorded_service

-- A success is still accepted if it is settled at most this long after the deadline. The door also waits this long.
local GRACE_MS = 1000

local job = job_record.read_job(id)
if not job then
  return { 'gone' }
end
local label = stats.label_of(job.tenant)
local label_and_model = label .. '|' .. job.model
-- Counts the tokens of this attempt, and returns how many it computed for the first time. If the tokens of an attempt
-- were kept, it counts only the others: the attempt that continues the answer counts the kept ones.
local function count_unkept(kept)
  local prompt, cached = kept > 0 and 0 or prompt_tokens, kept > 0 and 0 or cached_tokens
  local completion = math.max(0, completion_tokens - kept)
  counted_claims.count_tokens(job, prompt, cached, completion, again_tokens)
  spending.spend_tokens(job, prompt, completion)
  return prompt - cached + completion
end
if outcome == '' or token == '' or job.claim ~= token then
  -- A repeated call must not count the tokens of one claim twice.
  if prompt_tokens + completion_tokens > cached_tokens and counted_claims.count_claim_once(id, token) then
    local ended_by_own_claim = job.claim == token and job.state ~= 'running' and job.state ~= 'queued'
      and job.state ~= 'succeeded'
    local kept_claim = redis.call('HGET', k_rq_job .. id, 'penstock_kept_claim')
    local computed = count_unkept(kept_claim == token and job.kept_tokens or 0)
    if computed > 0 then
      stats.count('wasted|' .. label .. '|'
        .. (ended_by_own_claim and (job.cancel == 'abandoned' and 'abandoned' or job.state) or 'retried'), computed)
    end
  end
  return { 'lost' }
end
if job.state ~= 'running' then
  return { 'already', job.state }
end

stats.hold_counts()
local ending = { outcome = outcome, code = code, stage = stage, finish_reason = finish_reason, result = result,
  rq_return = rq_return, prompt = prompt_tokens, cached = cached_tokens, completion = completion_tokens }
if job.cancel ~= '' then
  ending.outcome, ending.code, ending.finish_reason = 'canceled', job.cancel, 'canceled'
elseif outcome == 'succeeded' and now_ms > job.deadline_ms + GRACE_MS then
  ending.outcome, ending.code, ending.stage, ending.finish_reason = 'expired', 'deadline_exceeded', 'decode', 'deadline'
end

-- The tenant pays only for tokens that were computed, not for those that were reused.
local cost_mwt = generated_weight.cost_of(job, prompt_tokens - cached_tokens + cpu_tokens, completion_tokens)
-- Replace the estimate charged at the claim with the true cost. In turns mode every job costs the same, so nothing
-- needs to be replaced.
if settings.read_settings({ 'fairness', 'result_ttl_s' }).fairness ~= 'turns' then
  service.charge(job, cost_mwt)
end

local computed = count_unkept(0)
if ending.outcome ~= 'succeeded' and computed > 0 then
  stats.count('wasted|' .. label .. '|' .. (ending.code == 'abandoned' and 'abandoned' or ending.outcome), computed)
end
-- An attempt that continues an answer has neither the job's first token nor all of its tokens.
local first_token_ms, own_tokens = job.kept_tokens == 0 and ttft_ms or -1, completion_tokens - job.kept_tokens
if first_token_ms >= 0 then
  local size = prompt_tokens < 256 and 's' or prompt_tokens < 2048 and 'm' or 'l'
  local claimed_ms = number(job_record.facts_of(job).penstock_started_ms, nil, job.admitted_ms, now_ms)
  local since_admission_ms = first_token_ms + (claimed_ms and claimed_ms - job.admitted_ms or 0)
  stats.observe('time_to_first_token|' .. label_and_model .. '|' .. size, since_admission_ms, id)
  history.count_first_token(job.tenant, job.slug, since_admission_ms)
end
-- Candidates that are generated side by side share the time.
if decode_ms >= 0 and own_tokens > 1 and job.candidates == 1 then
  stats.observe('time_per_output_token|' .. label_and_model, decode_ms / (own_tokens - 1), id)
end
if ending.outcome == 'succeeded' then
  pool_record.smooth(job.slug, running.run_ms_of(job), cost_mwt)
end
if ending.outcome == 'succeeded' or ending.outcome == 'expired' and completion_tokens > 0 then
  -- The lengths are those of single answers.
  local answer_tokens = math.floor(completion_tokens / job.candidates + 0.5)
  learning.learn_length(job, answer_tokens, outcome ~= 'succeeded' or finish_reason == 'length')
end
predictions.judge_predictions(job, ending.outcome, first_token_ms, now_ms)
finish.end_job(job, ending, now_ms)
if redis.call('EXISTS', k_rq_worker .. worker) == 1 then
  redis.call('HINCRBY', k_rq_worker .. worker,
    ending.outcome == 'succeeded' and 'successful_job_count' or 'failed_job_count', 1)
end
stats.write_counts()
return { 'settled', ending.outcome }
