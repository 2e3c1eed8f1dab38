-- counted_claims: counts the tokens of the claims of jobs, those of each claim once even if a call is repeated.
-- KEYS rq_job
-- USES stats generated_weight
-- The field `penstock_told` has the claim tokens, newest last. A job can be claimed and given back any number of times,
-- so the field keeps only the newest. A worker repeats a call before it claims the job as many times more.
local MAX_COUNTED_CLAIMS = 32

-- Returns whether the tokens of this claim were not counted before; from now on they were.
local function count_claim_once(id, token)
  local counted, newest = {}, redis.call('HGET', k_rq_job .. id, 'penstock_told') or ''
  for earlier in string.gmatch(newest, '%S+') do
    if earlier == token then
      return false
    end
    counted[#counted + 1] = earlier
  end
  counted[#counted + 1] = token
  local first = math.max(1, #counted - MAX_COUNTED_CLAIMS + 1)
  redis.call('HSET', k_rq_job .. id, 'penstock_told', table.concat(counted, ' ', first))
  return true
end

-- Counts the tokens that a claim of a job has computed, `again` of them for the second time.
local function count_tokens(job, prompt, cached, completion, again)
  local label = stats.label_of(job.tenant)
  local of_job = '|' .. label .. '|' .. job.model
  stats.count('tokens' .. of_job .. '|prompt', prompt + again)
  if cached > 0 then
    stats.count('tokens' .. of_job .. '|cached', cached)
  end
  stats.count('tokens' .. of_job .. '|completion', completion)
  local cost_mwt = generated_weight.cost_of(job, prompt - cached, completion)
  stats.count('served' .. of_job, math.floor(cost_mwt / 1000 + 0.5))
  if again > 0 then
    stats.count('wasted|' .. label .. '|retried', again)
  end
end
