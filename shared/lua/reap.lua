-- reap: ends late queued jobs, takes back jobs whose lease has ended, and removes stale workers, queues and tenants.
-- KEYS deadlines leases polls workers pool worker queues order rq_wip rq_queues rq_queue rq_workers
--      rq_workers_of rq_worker tenants tenant
-- ARGV
--   limit int · the most entries of each kind that this call handles, at most 64
-- ANSWERS reaped
--   reaped: numbers of jobs expired, requeued, failed and canceled; ms until the next deadline, lease or poll is due,
--   or -1 for none
-- KEEPS 1 2 4 5 8 9 10 12
-- USES clock settings oom_write mark schema job_record stats finish forget lapse drop reap_pause fleet crashes
-- USES company deferral

local set = settings.read_settings({ 'lease_ms', 'result_ttl_s', 'schema_oldest' })
if schema.is_outdated(set.schema_oldest) then
  return { 'reaped', 0, 0, 0, 0, -1 }
end
local counts = { expired = 0, requeued = 0, failed = 0, canceled = 0 }

local late = redis.call('ZRANGEBYSCORE', k_deadlines, '-inf', now_ms, 'LIMIT', 0, limit)
for i = 1, #late do
  local job = job_record.read_job(late[i])
  if job and job.state == 'queued' then
    local ending = deferral.late_ending(job, 'deadline_exceeded')
    finish.end_job(job, ending, now_ms)
    counts[ending.outcome] = counts[ending.outcome] + 1
  elseif job then
    redis.call('ZREM', k_deadlines, late[i])
  else
    forget.forget_job(late[i])
  end
end

reap_pause.note_gap(now_ms, set.lease_ms)
local on_hold = reap_pause.holds_leases(now_ms)
local lapsed = on_hold and {} or redis.call('ZRANGEBYSCORE', k_leases, '-inf', now_ms, 'LIMIT', 0, limit)

-- Takes back the job and, if its worker has crashed, all jobs of the worker, because any of them can be the cause.
local function take_back(lapsed_job)
  local jobs = { lapsed_job }
  if crashes.is_silent(lapsed_job.worker, set.lease_ms) then
    crashes.count_silence(lapsed_job)
    jobs = company.jobs_on(lapsed_job.worker)
    company.note_company(jobs)
  end
  for _, job in ipairs(jobs) do
    local outcome = lapse.end_lease(job, true, now_ms)
    counts[outcome] = counts[outcome] + 1
    stats.count('reclaimed')
  end
end

for i = 1, #lapsed do
  local job = job_record.read_job(lapsed[i])
  if job and job.state == 'running' then
    take_back(job)
  elseif job then
    redis.call('ZREM', k_leases, lapsed[i])
  else
    forget.forget_job(lapsed[i])
  end
end

local unpolled = redis.call('ZRANGEBYSCORE', k_polls, '-inf', now_ms, 'LIMIT', 0, limit)
for i = 1, #unpolled do
  local job = job_record.read_job(unpolled[i])
  redis.call('ZREM', k_polls, unpolled[i])
  if job then
    counts.canceled = counts.canceled + (job.state == 'queued' and 1 or 0)
    drop.cancel_job(job, 'abandoned', now_ms)
  end
end

-- Remove workers without a heartbeat for a minute, queues whose last result has expired, and tenants whose record has
-- expired.
local silent_workers = redis.call('ZRANGEBYSCORE', k_workers, '-inf', now_ms - 60000, 'LIMIT', 0, limit)
for i = 1, #silent_workers do
  local slug = redis.call('HGET', k_worker .. silent_workers[i], 'slug')
  redis.call('ZREM', k_workers, silent_workers[i])
  if slug then
    redis.call('ZREM', k_pool .. slug, silent_workers[i])
  end
  redis.call('SREM', k_rq_workers, k_rq_worker .. silent_workers[i])
end
local unreadable = redis.call('ZRANGEBYSCORE', k_queues, '-inf', now_ms, 'LIMIT', 0, limit)
for i = 1, #unreadable do
  local queue = unreadable[i]
  if redis.call('EXISTS', k_order .. queue, k_rq_wip .. queue) == 0 then
    redis.call('ZREM', k_queues, queue)
    redis.call('SREM', k_rq_queues, k_rq_queue .. queue)
    redis.call('DEL', k_rq_workers_of .. queue)
  end
end
-- A tenant is removed `result_ttl_s` plus 25 hours after its last admission, which is also when its record expires (see
-- admit). A tenant with a policy stays; its score becomes negative, so that later calls do not examine it again.
local stale_tenants = redis.call('ZRANGEBYSCORE', k_tenants, 1, now_ms - (set.result_ttl_s + 90000) * 1000, 'LIMIT', 0,
  limit)
for i = 1, #stale_tenants do
  local tenant = stale_tenants[i]
  if redis.call('HEXISTS', k_tenant .. tenant, 'policy') == 1 then
    redis.call('ZADD', k_tenants, -redis.call('ZSCORE', k_tenants, tenant), tenant)
  else
    redis.call('ZREM', k_tenants, tenant)
  end
end
fleet.retire_silent(now_ms)

local due_ms = -1
local function consider(score)
  -- A score that is not a time was not written by a script, and nothing is due because of it.
  local score_ms = number(score)
  if score_ms then
    local in_ms = math.max(0, score_ms - now_ms)
    due_ms = due_ms < 0 and in_ms or math.min(due_ms, in_ms)
  end
end
consider(redis.call('ZRANGE', k_deadlines, 0, 0, 'WITHSCORES')[2])
consider(redis.call('ZRANGE', k_polls, 0, 0, 'WITHSCORES')[2])
local first_lease = redis.call('ZRANGE', k_leases, 0, 0, 'WITHSCORES')[2]
if first_lease and on_hold then
  first_lease = math.max(number(first_lease, 0), reap_pause.held_until_ms())
end
consider(first_lease)
return { 'reaped', counts.expired, counts.requeued, counts.failed, counts.canceled, due_ms }
