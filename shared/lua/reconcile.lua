-- reconcile: undoes other programs' changes to RQ's keys for one queue; examines 64 positions of the queue.
-- KEYS order rq_queue rq_wip rq_job rq_finished rq_failed rq_canceled rq_workers jobs
--      rq_workers_of
-- ARGV
--   tenant text · the tenant of the queue
--   slug text · the queue's model: its name in the form used in store keys
--   start int · the first position to examine, from 0
-- ANSWERS reconciled
--   reconciled: number of repairs; the next position to examine, or -1 at the end of the queue
-- KEEPS 1 7 8 9
-- USES clock settings oom_write mark repair job_record waiting rq stats forget

-- The other programs may be RQ's dashboard (requeue, delete, empty), `rq requeue`, a stock `rq worker`, or a person who
-- deletes a key. Penstock's order and states are authoritative: RQ's list, statuses and registries are made to agree.
local WINDOW = 64
local queue = tenant .. '.' .. slug
local order, mirror, wip = k_order .. queue, k_rq_queue .. queue, k_rq_wip .. queue
local RQ_STATUS = { queued = 'queued', running = 'started', succeeded = 'finished', failed = 'failed',
  expired = 'failed', canceled = 'canceled' }
local REGISTRIES = { finished = k_rq_finished .. queue, failed = k_rq_failed .. queue,
  canceled = k_rq_canceled .. queue }

-- Makes RQ's status, registries and TTL for a job agree with Penstock's state. An inflight job's hash has no TTL.
local function make_agree(job)
  local status = RQ_STATUS[job.state]
  if redis.call('HGET', k_rq_job .. job.id, 'status') ~= status then
    redis.call('HSET', k_rq_job .. job.id, 'status', status)
    repair.note_repairs(1)
  end
  local ttl_s = settings.read_setting('result_ttl_s')
  for name, key in pairs(REGISTRIES) do
    if name ~= status then
      redis.call('ZREM', key, job.id)
    elseif not redis.call('ZSCORE', key, job.id) then
      redis.call('ZADD', key, math.ceil(now_ms / 1000) + ttl_s, job.id)
      redis.call('EXPIRE', key, ttl_s)
      repair.note_repairs(1)
    end
  end
  if job.state == 'queued' or job.state == 'running' then
    redis.call('PERSIST', k_rq_job .. job.id)
  elseif redis.call('TTL', k_rq_job .. job.id) < 0 then
    redis.call('EXPIRE', k_rq_job .. job.id, ttl_s)
  end
end

-- Examines the tenant's newest ended job in this queue. If it is missing from its registry, the others may be missing
-- too, and up to WINDOW of them are examined.
local function restore_registries()
  for _, id in ipairs(redis.call('ZREVRANGE', k_jobs .. tenant, 0, WINDOW - 1)) do
    local job = job_record.read_job(id)
    if job and job.queue == queue and REGISTRIES[RQ_STATUS[job.state]] then
      local made_before = repair.repairs.made
      make_agree(job)
      if repair.repairs.made == made_before then
        return
      end
    end
  end
end

-- Inserts an id into RQ's list at a position. LINSERT finds its place by value, and the id there may stand in the list
-- several times, so a mark, which is not a valid id, takes its place for the time of the call.
local MARK = '(place)'
local function insert_at(position, id)
  local there = redis.call('LINDEX', mirror, position)
  if not there then
    rq.rq_enlist(queue, id)
    return
  end
  redis.call('LSET', mirror, position, MARK)
  redis.call('LINSERT', mirror, 'BEFORE', MARK, id)
  redis.call('LSET', mirror, position + 1, there)
end

if start == 0 then
  restore_registries()
end
local place = start
local expected = redis.call('ZRANGE', order, start, start + WINDOW - 1)
for i = 1, #expected do
  local id = expected[i]
  local job = job_record.read_job(id)
  if job and job.state == 'queued' then
    make_agree(job)
    if redis.call('LINDEX', mirror, place) ~= id then
      redis.call('LREM', mirror, 0, id)
      insert_at(place, id)
      repair.note_repairs(1)
    end
    place = place + 1
  else
    waiting.strike(tenant, slug, id)
    if not job then
      forget.forget_job(id)
    end
    repair.note_repairs(1)
  end
end

-- RQ's list mirrors Penstock's order. Entries beyond the length of that order were added by another program.
local length = redis.call('ZCARD', order)
local surplus = redis.call('LRANGE', mirror, length, length + WINDOW - 1)
for i = 1, #surplus do
  redis.call('LREM', mirror, -1, surplus[i])
  local job = job_record.read_job(surplus[i])
  if job then
    make_agree(job)
  end
  repair.note_repairs(1)
end

local started = redis.call('ZRANGE', wip, 0, WINDOW - 1)
for i = 1, #started do
  local id, token = string.match(started[i], '^([^:]*):?(.*)$')
  local job = job_record.read_job(id)
  if not (job and job.state == 'running' and job.claim == token) then
    redis.call('ZREM', wip, started[i])
    if job then
      make_agree(job)
    end
    repair.note_repairs(1)
  end
end
-- RQ keeps a queue's workers in a set, but does not remove a worker from the set when the worker stops.
for _, worker_key in ipairs(redis.call('SRANDMEMBER', k_rq_workers_of .. queue, WINDOW)) do
  if redis.call('SISMEMBER', k_rq_workers, worker_key) == 0 then
    redis.call('SREM', k_rq_workers_of .. queue, worker_key)
  end
end
if repair.repairs.made > 0 then
  stats.count('reconciled', repair.repairs.made)
end
return { 'reconciled', repair.repairs.made, place < length and place or -1 }
