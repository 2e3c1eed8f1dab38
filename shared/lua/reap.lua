-- reap: ends what is late in the queue, takes back what no lease holds, forgets who is long gone.
-- KEYS config deadlines leases polls workers pool worker queues order rq_wip rq_queues rq_queue rq_workers
--      rq_workers_of rq_worker tenants tenant
-- ARGV
--   limit int · entries of each kind handled in this call, at most 64
-- ANSWERS reaped
--   reaped: expired, requeued, failed, canceled, ms until something is due or -1
-- KEEPS 1 2 4 5 8 9 10
-- USES clock afford job waiting rq stats finish forget giveback lapse drop live

local set = redis.call('HMGET', k_config, 'lease_ms', 'result_ttl_s')
local lease_ms, ttl_s = tonumber(set[1] or 15000), tonumber(set[2] or 3600)
local moved = { expired = 0, requeued = 0, failed = 0, canceled = 0 }

local late = redis.call('ZRANGEBYSCORE', k_deadlines, '-inf', now_ms, 'LIMIT', 0, limit)
for i = 1, #late do
  local job = read_job(late[i])
  if job and job.state == 'queued' then
    finish(job, { outcome = 'expired', code = 'deadline_exceeded', stage = 'queue', finish_reason = '', result = '',
      rq_return = '' }, now_ms)
    moved.expired = moved.expired + 1
  elseif job then
    redis.call('ZREM', k_deadlines, late[i])
  else
    forget(late[i])
  end
end

note_gap(now_ms, lease_ms)
local held = holds_leases(now_ms)
local lapsed = held and {} or redis.call('ZRANGEBYSCORE', k_leases, '-inf', now_ms, 'LIMIT', 0, limit)
for i = 1, #lapsed do
  local job = read_job(lapsed[i])
  if job and job.state == 'running' then
    local became = lapse(job, true, now_ms)
    moved[became] = moved[became] + 1
    count('reclaimed')
  elseif job then
    redis.call('ZREM', k_leases, lapsed[i])
  else
    forget(lapsed[i])
  end
end

local unpolled = redis.call('ZRANGEBYSCORE', k_polls, '-inf', now_ms, 'LIMIT', 0, limit)
for i = 1, #unpolled do
  local job = read_job(unpolled[i])
  redis.call('ZREM', k_polls, unpolled[i])
  if job then
    moved.canceled = moved.canceled + (job.state == 'queued' and 1 or 0)
    drop(job, 'abandoned', now_ms)
  end
end

-- Workers silent for a minute, queues of which nothing can be read any more, and tenants of which nothing is kept.
local silent = redis.call('ZRANGEBYSCORE', k_workers, '-inf', now_ms - 60000, 'LIMIT', 0, limit)
for i = 1, #silent do
  local slug = redis.call('HGET', k_worker .. silent[i], 'slug')
  redis.call('ZREM', k_workers, silent[i])
  if slug then
    redis.call('ZREM', k_pool .. slug, silent[i])
  end
  redis.call('SREM', k_rq_workers, k_rq_worker .. silent[i])
end
local quiet = redis.call('ZRANGEBYSCORE', k_queues, '-inf', now_ms, 'LIMIT', 0, limit)
for i = 1, #quiet do
  local queue = quiet[i]
  if redis.call('EXISTS', k_order .. queue, k_rq_wip .. queue) == 0 then
    redis.call('ZREM', k_queues, queue)
    redis.call('SREM', k_rq_queues, k_rq_queue .. queue)
    redis.call('DEL', k_rq_workers_of .. queue)
  end
end
-- A day and an hour after its last job can be read, as admit keeps its record. One with a policy stays known, and
-- its moment is turned negative, so that it is not looked at again.
local long_ago = redis.call('ZRANGEBYSCORE', k_tenants, 1, now_ms - (ttl_s + 90000) * 1000, 'LIMIT', 0, limit)
for i = 1, #long_ago do
  local tenant = long_ago[i]
  if redis.call('HEXISTS', k_tenant .. tenant, 'policy') == 1 then
    redis.call('ZADD', k_tenants, -redis.call('ZSCORE', k_tenants, tenant), tenant)
  else
    redis.call('ZREM', k_tenants, tenant)
  end
end
count_live_slots(now_ms)

local due_ms = -1
local function consider(score)
  if score then
    local in_ms = math.max(0, tonumber(score) - now_ms)
    due_ms = due_ms < 0 and in_ms or math.min(due_ms, in_ms)
  end
end
consider(redis.call('ZRANGE', k_deadlines, 0, 0, 'WITHSCORES')[2])
consider(redis.call('ZRANGE', k_polls, 0, 0, 'WITHSCORES')[2])
local first_lease = redis.call('ZRANGE', k_leases, 0, 0, 'WITHSCORES')[2]
if first_lease and held then
  first_lease = math.max(first_lease, tonumber(redis.call('HGET', k_config, 'hold_until_ms')))
end
consider(first_lease)
return { 'reaped', moved.expired, moved.requeued, moved.failed, moved.canceled, due_ms }
