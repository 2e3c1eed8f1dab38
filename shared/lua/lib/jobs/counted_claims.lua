-- counted_claims: remembers for which claims of a job tokens were counted, so that a repeated call counts once.
-- KEYS rq_job
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
