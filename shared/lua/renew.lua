-- renew: a worker's heartbeat; extends the leases of exactly the jobs it names, and tells what it lost.
-- KEYS config leases books worker workers pool models rq_job rq_worker
-- ARGV
--   worker text · who beats
--   slug text · its model as it stands in keys
--   model text · its model as it is served
--   slots int · jobs it can run at once
--   slots_busy int · jobs it runs
--   cells int · KV cells in all
--   cells_free int · KV cells free
--   draining int · 1 when it claims no more
--   facts text · JSON object of plain values; names that begin with rq_ go to RQ's record
--   held rest · id, token, tokens generated so far, … of all it really holds
-- ANSWERS renewed
--   renewed: 1 to drain, 1 when RQ knows no such worker, lost ids, ids to cancel
-- KEEPS 1 8 9
-- USES clock afford job live books waiting
-- RARELY serve

local told = cjson.decode(facts)
local set = redis.call('HMGET', k_config, 'lease_ms', 'fairness', 'generated_weight')
local lease_ms, in_tokens, generated_weight = tonumber(set[1] or 15000), set[2] ~= 'turns', tonumber(set[3]) or 4
note_gap(now_ms, lease_ms)

local worker_key, rq_key = k_worker .. worker, k_rq_worker .. worker
local known_to_rq = redis.call('EXISTS', rq_key) == 1
redis.call('HSET', worker_key, 'model', model, 'slug', slug, 'slots', slots, 'slots_busy', slots_busy, 'cells', cells,
  'cells_free', cells_free, 'draining', draining, 'beat_ms', now_ms)
for name, value in pairs(told) do
  local rq_name = string.match(name, '^rq_(.+)$')
  -- Numbers go as they are: tostring would round them to 14 digits.
  local plain = type(value) == 'number' and value or tostring(value)
  if not rq_name then
    redis.call('HSET', worker_key, name, plain)
  elseif known_to_rq then
    redis.call('HSET', rq_key, rq_name, plain)
  end
end
redis.call('PEXPIRE', worker_key, 60000)
if known_to_rq then
  -- RQ knows one current job a worker; of ours it is shown the first.
  if ARGV[held] then
    redis.call('HSET', rq_key, 'current_job', ARGV[held])
  else
    redis.call('HDEL', rq_key, 'current_job')
  end
  redis.call('HSET', rq_key, 'last_heartbeat', iso(now_ms))
  redis.call('PEXPIRE', rq_key, 120000)
end
redis.call('ZADD', k_workers, now_ms, worker)
redis.call('ZADD', k_pool .. slug, now_ms, worker)
redis.call('ZREMRANGEBYSCORE', k_pool .. slug, '-inf', now_ms - 60000)
redis.call('EXPIRE', k_pool .. slug, 3600)
redis.call('ZADD', k_models, now_ms, model)
count_live_slots(now_ms)
gather_rates(slug, now_ms)
if redis.call('EXISTS', k_leases) == 0 then
  redis.call('HSET', k_books .. slug, 'running', 0)
end

-- An answer that has become longer than its claim was charged for is charged as it grows, so that its tenant's
-- turn does not come as if it were short. What a claim charged too much, settle gives back.
local function charge_overrun(job, generated)
  local cost_mwt = 1000 * (job.prompt_tokens + generated_weight * generated)
  if not in_tokens or cost_mwt <= job.cost_mwt then
    return
  end
  local charge_mwt = by_weight(job.tenant, cost_mwt)
  if charge_mwt > job.charged_mwt then
    serve(job.tenant, charge_mwt - job.charged_mwt)
    redis.call('HSET', k_rq_job .. job.id, 'penstock_charged_mwt', charge_mwt)
  end
end

local lost, canceled = {}, {}
for i = held, #ARGV, 3 do
  local id, token = ARGV[i], ARGV[i + 1]
  local job = read_job(id)
  if job and job.state == 'running' and job.claim == token and job.worker == worker then
    redis.call('ZADD', k_leases, now_ms + lease_ms, id)
    redis.call('HSET', k_rq_job .. id, 'last_heartbeat', iso(now_ms))
    charge_overrun(job, tonumber(ARGV[i + 2]))
    if job.cancel ~= '' then
      canceled[#canceled + 1] = id
    end
  else
    lost[#lost + 1] = id
  end
end
local drain = redis.call('HGET', worker_key, 'drain_asked') == '1' or redis.call('HGET', k_config, 'draining') == '1'
return { 'renewed', drain and 1 or 0, known_to_rq and 0 or 1, lost, canceled }
