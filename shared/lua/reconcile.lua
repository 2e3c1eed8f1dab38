-- reconcile: puts right what foreign hands did to a queue; looks at 64 places of it.
-- KEYS order rq_queue rq_wip rq_job rq_finished rq_failed rq_canceled rq_workers
--      rq_workers_of config
-- ARGV
--   tenant text · whose queue
--   slug text · of which model
--   start int · the first place looked at, from 0
-- ANSWERS reconciled
--   reconciled: repairs made, the next place to look at or -1
-- KEEPS 1 7 8 9
-- USES clock afford job waiting rq stats forget

-- Foreign hands: the dashboard's requeue, delete and empty, `rq requeue`, a stock `rq worker`, DEL by hand.
-- Our order and our states are the truth; RQ's list, statuses and registries are made to agree with them.
local WINDOW = 64
local queue, repairs = tenant .. '.' .. slug, 0
local order, mirror, wip = k_order .. queue, k_rq_queue .. queue, k_rq_wip .. queue
local RQ_STATUS = { queued = 'queued', running = 'started', succeeded = 'finished', failed = 'failed', expired = 'failed',
  canceled = 'canceled' }
local REGISTRIES = { finished = k_rq_finished .. queue, failed = k_rq_failed .. queue, canceled = k_rq_canceled .. queue }

local function repaired()
  repairs = repairs + 1
  count('reconciled')
end

-- RQ's status and registries as our state says; what is inflight has no TTL.
local function make_agree(job)
  local status = RQ_STATUS[job.state]
  if redis.call('HGET', k_rq_job .. job.id, 'status') ~= status then
    redis.call('HSET', k_rq_job .. job.id, 'status', status)
    repaired()
  end
  local ttl_s = tonumber(redis.call('HGET', k_config, 'result_ttl_s') or 3600)
  for name, key in pairs(REGISTRIES) do
    if name ~= status then
      redis.call('ZREM', key, job.id)
    elseif not redis.call('ZSCORE', key, job.id) then
      redis.call('ZADD', key, math.floor(now_ms / 1000) + ttl_s, job.id)
      redis.call('EXPIRE', key, ttl_s)
      repaired()
    end
  end
  if job.state == 'queued' or job.state == 'running' then
    redis.call('PERSIST', k_rq_job .. job.id)
  elseif redis.call('TTL', k_rq_job .. job.id) < 0 then
    redis.call('EXPIRE', k_rq_job .. job.id, ttl_s)
  end
end

local place = start
local wanted = redis.call('ZRANGE', order, start, start + WINDOW - 1)
for i = 1, #wanted do
  local id = wanted[i]
  local job = read_job(id)
  if job and job.state == 'queued' then
    make_agree(job)
    if redis.call('LINDEX', mirror, place) ~= id then
      redis.call('LREM', mirror, 0, id)
      rq_enlist(queue, id, redis.call('LINDEX', mirror, place) or nil)
      repaired()
    end
    place = place + 1
  else
    strike(tenant, slug, id)
    if not job then
      forget(id)
    end
    repaired()
  end
end

-- Beyond the last of ours stands what somebody else has put there.
local length = redis.call('ZCARD', order)
local surplus = redis.call('LRANGE', mirror, length, length + WINDOW - 1)
for i = 1, #surplus do
  redis.call('LREM', mirror, -1, surplus[i])
  local job = read_job(surplus[i])
  if job then
    make_agree(job)
  end
  repaired()
end

local started = redis.call('ZRANGE', wip, 0, WINDOW - 1)
for i = 1, #started do
  local id, token = string.match(started[i], '^([^:]*):?(.*)$')
  local job = read_job(id)
  if not (job and job.state == 'running' and job.claim == token) then
    redis.call('ZREM', wip, started[i])
    if job then
      make_agree(job)
    end
    repaired()
  end
end
-- RQ counts a queue's workers by a set that a worker which has stopped does not leave.
for _, worker_key in ipairs(redis.call('SRANDMEMBER', k_rq_workers_of .. queue, WINDOW)) do
  if redis.call('SISMEMBER', k_rq_workers, worker_key) == 0 then
    redis.call('SREM', k_rq_workers_of .. queue, worker_key)
  end
end
return { 'reconciled', repairs, place < length and place or -1 }
