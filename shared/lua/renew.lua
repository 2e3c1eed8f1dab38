-- renew: records a worker's heartbeat and extends the leases of exactly the jobs it names; returns those it has lost.
-- KEYS config leases books rows worker workers pool models stats rq_job rq_worker rq_workers
--      rq_executions rq_execution
-- ARGV
--   worker text · the worker
--   slug text · the worker's model: its name in the form used in store keys
--   model text · the name under which the worker serves its model
--   slots int · number of jobs that the worker can run at once
--   slots_busy int · number of jobs that the worker runs now
--   cells int · number of the worker's KV cells
--   cells_free int · number of the worker's free KV cells
--   draining int · 1 if the worker claims no more jobs
--   facts text · JSON object of plain values; names that begin with rq_ are written to RQ's record of the worker
--   held rest · for each job of the worker: id, claim token, tokens generated so far, weighted tokens of CPU time
-- ANSWERS renewed
--   renewed: 1 if the worker must drain; 1 if RQ has no record of the worker; ids of lost jobs; ids of jobs to cancel;
--            number of requests that the model's pool has refused because of its load
-- KEEPS 1 8 9 12
-- USES clock settings oom_write mark schema job_record reap_pause fleet fastest_worker stats progress pausing loadable
-- USES rq
-- RARELY note_loadable charge count discount note_crash off_since_ms

local reported = cjson.decode(facts)
local set = settings.read_settings({ 'lease_ms', 'fairness', 'preemption' })
local lease_ms, charges_tokens = set.lease_ms, set.fairness ~= 'turns'
reap_pause.note_gap(now_ms, lease_ms)

-- Returns by how much a number has grown that the worker counts from its start; 0 if it has begun anew.
local function growth(worker_key, field)
  local reached = number(reported[field], 0, 0)
  local new = reached > 0 and reached - number(redis.call('HGET', worker_key, field), 0, 0) or 0
  return math.max(0, math.floor(new))
end

-- The most workers of a pool that are looked at to see whether all of them drain.
local MAX_LOOKED = 1000

-- Notes whether all live workers of a pool drain: nobody would start a job that is admitted then.
local function note_drain(slug, drains)
  local live = drains and redis.call('ZRANGEBYSCORE', k_pool .. slug, '(' .. digits(now_ms - LIVE_MS), '+inf', 'LIMIT',
    0, MAX_LOOKED) or {}
  drains = drains and #live < MAX_LOOKED
  for i = 1, #live do
    drains = drains and redis.call('HGET', k_worker .. live[i], 'draining') == '1'
  end
  if drains then
    redis.call('HSET', k_books .. slug, 'drained_ms', now_ms)
  else
    redis.call('HDEL', k_books .. slug, 'drained_ms')
  end
end

-- Counts the pauses that have ended and the tokens that were drafted since the worker's last heartbeat.
local function count_reported(worker_key)
  for kind, results in pairs({ pauses = { 'kept', 'copied', 'recomputed' }, drafts = { 'accepted', 'rejected' } }) do
    for _, result in ipairs(results) do
      local new = growth(worker_key, kind .. '_' .. result)
      if new > 0 then
        stats.count(kind .. '|' .. model .. '|' .. result, new)
      end
    end
  end
end

local worker_key, rq_key, beat = k_worker .. worker, k_rq_worker .. worker, rq.iso(now_ms)
local known_to_rq = redis.call('EXISTS', rq_key) == 1
count_reported(worker_key)
redis.call('HSET', worker_key, 'model', model, 'slug', slug, 'slots', slots, 'slots_busy', slots_busy, 'cells', cells,
  'cells_free', cells_free, 'draining', draining, 'beat_ms', now_ms)
redis.call('HSETNX', worker_key, 'since_ms', now_ms)
for name, value in pairs(reported) do
  local rq_name = string.match(name, '^rq_(.+)$')
  -- Pass numbers to Redis as numbers: tostring would round them to 14 digits.
  local stored = type(value) == 'number' and value or tostring(value)
  if not rq_name then
    redis.call('HSET', worker_key, name, stored)
  elseif known_to_rq then
    redis.call('HSET', rq_key, rq_name, stored)
  end
end
redis.call('PEXPIRE', worker_key, 60000)
if known_to_rq then
  -- Reap removes a worker from RQ's set after a minute of silence, and RQ adds it only at its start.
  redis.call('SADD', k_rq_workers, rq_key)
  -- RQ shows only one current job for each worker, so only the first of the worker's jobs is written. RQ 2 reads it
  -- from the worker's record. RQ 3 reads it from a set of executions; each execution has its own record.
  redis.call('DEL', k_rq_executions(worker))
  if ARGV[held] then
    local id, token = ARGV[held], ARGV[held + 1]
    local execution = id .. ':' .. token
    redis.call('HSET', rq_key, 'current_job', id)
    redis.call('SADD', k_rq_executions(worker), execution)
    redis.call('PEXPIRE', k_rq_executions(worker), 120000)
    redis.call('HSETNX', k_rq_execution .. execution, 'created_at', now_ms / 1000)
    redis.call('HSET', k_rq_execution .. execution, 'id', token, 'job_id', id, 'worker_name', worker,
      'last_heartbeat', now_ms / 1000)
    redis.call('PEXPIRE', k_rq_execution .. execution, 120000)
  else
    redis.call('HDEL', rq_key, 'current_job')
  end
  redis.call('HSET', rq_key, 'last_heartbeat', beat)
  redis.call('PEXPIRE', rq_key, 120000)
end
redis.call('ZADD', k_workers, now_ms, worker)
redis.call('ZADD', k_pool .. slug, now_ms, worker)
redis.call('ZREMRANGEBYSCORE', k_pool .. slug, '-inf', now_ms - 60000)
redis.call('EXPIRE', k_pool .. slug, 3600)
redis.call('ZADD', k_models, now_ms, model)
-- A worker that could load the model says when it expects to claim jobs. It has the slots only once it loads it.
local is_loadable = reported.claims_in_ms ~= nil and reported.loading ~= 1
fleet.count_worker(worker, slug, slots, now_ms, is_loadable)
note_drain(slug, draining == 1)
if reported.can_pause == 1 then
  redis.call('HSET', k_books .. slug, 'can_pause_ms', now_ms)
end
if reported.claims_in_ms then
  loadable.note_loadable(slug, slots, reported)
elseif draining == 0 then
  loadable.forget_loadable(slug)
end
fastest_worker.note_fastest(slug, worker, draining == 0 and not reported.claims_in_ms)
if redis.call('EXISTS', k_leases) == 0 then
  redis.call('HSET', k_books .. slug, 'running', 0, 'running_mwt', 0, 'running_tokens', 0, 'paused', 0)
  redis.call('DEL', k_rows .. slug)
end

local lost, canceled, computing = {}, {}, {}
local charges_all = pausing.worker_may_pause(worker)
for i = held, #ARGV, 4 do
  local id = ARGV[i]
  local job = job_record.read_beating(id, ARGV[i + 1], worker)
  if job then
    redis.call('ZADD', k_leases, now_ms + lease_ms, id)
    redis.call('HSET', k_rq_job .. id, 'last_heartbeat', beat)
    if charges_tokens then
      progress.charge_progress(job, number(ARGV[i + 2], 0), number(ARGV[i + 3], 0), charges_all)
    end
    if job.paused_since_ms == 0 then
      computing[#computing + 1] = job
    end
    if job.cancel ~= '' then
      canceled[#canceled + 1] = id
    end
  else
    lost[#lost + 1] = id
  end
end
if charges_all then
  progress.follow_service(slug, computing)
end
local system = read_fields(k_config, { 'draining', 'schema_oldest' })
local drain = redis.call('HGET', worker_key, 'drain_asked') == '1' or system.draining == '1'
  or schema.is_outdated(system.schema_oldest)
local refused = number(redis.call('HGET', k_stats, 'load_refusals|' .. slug), 0, 0)
return { 'renewed', drain and 1 or 0, known_to_rq and 0 or 1, lost, canceled, refused }
