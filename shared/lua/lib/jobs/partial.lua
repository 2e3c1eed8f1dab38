-- partial: keeps the token ids of an unfinished answer, so that a job that was put back continues after them.
-- KEYS partial events rq_job
-- USES generated_weight stream
-- The value has 4 bytes for each token of the answer so far and then a seal of SEAL_BYTES digits, made from the claim
-- token, the fingerprint of the worker's model, and the ids. So ids that another program has changed, that belong to
-- another model, or that an earlier attempt has left are not used. shared/jobs/answer_ids.py makes the same seal.
local SEAL_BYTES = 16

local function seal_of(claim, fingerprint, ids)
  return string.sub(redis.sha1hex(claim .. ' ' .. fingerprint .. ' ' .. ids), 1, SEAL_BYTES)
end

-- Returns the ids that the worker with this claim token and fingerprint has stored or was given, or ''.
local function read_ids(id, claim, fingerprint)
  local value = redis.pcall('GET', k_partial .. id)
  if type(value) ~= 'string' or fingerprint == '' then
    return ''
  end
  local ids = string.sub(value, 1, -SEAL_BYTES - 1)
  return string.sub(value, -SEAL_BYTES) == seal_of(claim, fingerprint, ids) and ids or ''
end

-- Adds to `job`, which is about to be put back, the number of tokens that are kept, and estimates its cost as that of a
-- job with a longer prompt and a shorter answer. Returns the cost of the kept tokens, which stays charged.
local function keep_ids(job)
  local length = redis.pcall('STRLEN', k_partial .. job.id)
  local kept = type(length) == 'number' and math.floor((length - SEAL_BYTES) / 4) or 0
  -- After each complete candidate, one more number is kept.
  job.kept_tokens = kept > 0 and kept < job.max_tokens + job.candidates and math.min(kept, job.max_tokens) or 0
  if job.kept_tokens == 0 then
    redis.call('HDEL', k_rq_job .. job.id, 'penstock_kept_tokens', 'penstock_kept_claim')
    return 0
  end
  local token_mwt = generated_weight.cost_of(job, 0, 1)
  local left_mwt = math.max(token_mwt, job.cost_mwt - 1000 * job.prompt_tokens - token_mwt * kept)
  job.cost_mwt = 1000 * (job.prompt_tokens + kept) + left_mwt
  redis.call('HSET', k_rq_job .. job.id, 'penstock_kept_tokens', kept, 'penstock_kept_claim', job.claim,
    'penstock_cost_mwt', whole(job.cost_mwt))
  return 1000 * job.prompt_tokens + token_mwt * kept
end

-- Prepares a job for a new claim by an owner in `group`: sets its kept tokens, its expected cost and the charge so far.
-- If its ids cannot be used, it starts anew. The caller then charges the expected cost.
local function take_up(job, group, claim, fingerprint)
  job.ids = ''
  if job.requeued_at_ms > 0 then
    local kept_claim = redis.call('HGET', k_rq_job .. job.id, 'penstock_kept_claim')
    -- Followers have the text of the ids only if the stream still has entries from before the job was put back.
    local entries = redis.pcall('XREVRANGE', k_events .. job.id, '+', '-', 'COUNT', 2)
    job.ids = kept_claim and #entries == 2 and read_ids(job.id, kept_claim, fingerprint) or ''
  end
  if job.ids ~= '' then
    redis.call('SETRANGE', k_partial .. job.id, #job.ids, seal_of(claim, fingerprint, job.ids))
  elseif job.requeued_at_ms > 0 then
    redis.call('DEL', k_partial .. job.id)
    redis.call('HDEL', k_rq_job .. job.id, 'penstock_kept_tokens', 'penstock_kept_claim')
  end
  if job.kept_tokens > 0 then
    job.cost_mwt = job.cost_mwt + generated_weight.cost_of(job, 0, job.kept_tokens) - 1000 * job.kept_tokens
    redis.call('HSET', k_rq_job .. job.id, 'penstock_cost_mwt', whole(job.cost_mwt))
    -- A group that the tenant has joined since pays for the whole job.
    job.group_charged_mwt = group == job.group and job.group_charged_mwt or 0
    redis.call('HDEL', k_rq_job .. job.id, 'penstock_group', 'penstock_group_charged_mwt')
  else
    job.charged_mwt, job.group_charged_mwt = 0, 0
  end
  job.group, job.kept_tokens = group, #job.ids / 4
end

-- Tells followers that a claim has started the job, and whether they keep the text that they have.
local function note_start(job)
  local resumed = job.ids ~= '' and { 'resumed', '1' } or {}
  if job.ids == '' and job.requeued_at_ms > 0 then
    stream.drop_earlier_attempts(k_events .. job.id)
  end
  stream.add_entry(k_events .. job.id, '*', 'type', 'started', 'attempt', job.attempts, unpack(resumed))
end
