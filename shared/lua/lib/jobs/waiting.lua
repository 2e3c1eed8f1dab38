-- waiting: adds jobs to their queues and removes them; no other code changes the queues.
-- KEYS deadlines order tenant rq_queue rq_job key_jobs kept
-- KEEPS 1 3 7 8
-- USES clock rq pool_record turns service priority tenant_bytes

-- Adds a queued job to the sums of its tenant, of the tenant's group and of its pool (`times` is 1), or subtracts it
-- (`times` is -1). The tenant must be in its active set.
local function tally(job, times)
  local sums = { jobs = 1, tokens = job.prompt_tokens + job.max_tokens, mwt = job.cost_mwt,
    batch_jobs = job.priority < 0 and 1 or 0, batch_mwt = job.priority < 0 and job.cost_mwt or 0 }
  local group = turns.add_sums(job.tenant, job.slug, sums, times)
  if group ~= '' then
    turns.add_sums(group, job.slug, sums, times)
  end
  turns.add_pool_sums(job.slug, sums, times)
end

-- How long the set of a key's queued jobs is kept. The longest deadline that a request can name is 24 hours.
local KEY_JOBS_TTL_S = 90000

-- Adds a job to the set of its key's queued jobs. Only jobs of keys with a bound on queued jobs have a `key_id`. The
-- set is ordered by when the jobs expire, so that an id whose record was lost is counted no longer than that.
local function enlist_for_key(job)
  if job.key_id ~= '' then
    redis.call('ZADD', k_key_jobs .. job.key_id, job.wanted_ms, job.id)
    redis.call('ZREMRANGEBYSCORE', k_key_jobs .. job.key_id, '-inf', now_ms)
    redis.call('EXPIRE', k_key_jobs .. job.key_id, KEY_JOBS_TTL_S)
  end
end

-- Adds a job to its queue and returns the job's position in the queue, from 0.
local function enlist(job)
  local order = k_order .. job.queue
  redis.call('ZADD', order, whole(priority.order_score(job.priority, job.latest_us)), job.id)
  local rank = redis.call('ZRANK', order, job.id)
  local next_id = redis.call('ZRANGE', order, rank + 1, rank + 1)[1]
  rq.rq_enlist(job.queue, job.id, next_id)
  redis.call('ZADD', k_deadlines, job.wanted_ms, job.id)
  enlist_for_key(job)
  local is_batch = job.priority < 0
  if not turns.activate(job.tenant, job.slug, is_batch) and rank == 0 and not is_batch then
    turns.change_set(job.tenant, job.slug, false)
  end
  tally(job, 1)
  if rank == 0 then
    redis.call('HSETNX', k_rq_job .. job.id, 'penstock_head_ms', now_ms)
  end
  return rank
end

-- Stores the time at which a job became the head of its queue. Before that time, the job waits for other jobs of its
-- tenant; after that time, it waits for its tenant's turn.
local function note_head(order)
  local head = redis.call('ZRANGE', order, 0, 0)[1]
  if head then
    redis.pcall('HSETNX', k_rq_job .. head, 'penstock_head_ms', now_ms)
  end
end

local function delist(job)
  local order = k_order .. job.queue
  redis.call('ZREM', k_deadlines, job.id)
  redis.call('LREM', k_rq_queue .. job.queue, 1, job.id)
  if redis.call('ZREM', order, job.id) == 0 then
    return
  end
  if job.key_id ~= '' then
    redis.call('ZREM', k_key_jobs .. job.key_id, job.id)
  end
  tally(job, -1)
  turns.deactivate(job.tenant, job.slug)
  note_head(order)
end

-- Removes from a queue an id that has no record or whose job is not queued. The job's cost is unknown, so the tenant's
-- sums stay too high until all of the tenant's queues are empty or recount corrects the sums.
local function strike(tenant, slug, id)
  redis.call('LREM', k_rq_queue .. tenant .. '.' .. slug, 1, id)
  local score = number(redis.call('ZSCORE', k_order .. tenant .. '.' .. slug, id), 0)
  if redis.call('ZREM', k_order .. tenant .. '.' .. slug, id) == 1 then
    local group = service.group_in(redis.call('HGET', k_tenant .. tenant, 'g|' .. slug))
    local batch_jobs = priority.parts_of_score(score) == -1 and 1 or 0
    turns.add_batch_sums(tenant, slug, -batch_jobs, 0)
    redis.call('HINCRBY', k_tenant .. tenant, 'n|' .. slug, -1)
    if group ~= '' then
      redis.call('HINCRBY', k_tenant .. group, 'n|' .. slug, -1)
      redis.call('HINCRBY', k_tenant .. group, 'waiting', -1)
      turns.add_batch_sums(group, slug, -batch_jobs, 0)
    end
    pool_record.book(slug, 'waiting', -1)
  end
  turns.deactivate(tenant, slug)
  if tenant_bytes.has_no_inflight_jobs(tenant) and redis.pcall('HEXISTS', k_kept .. tenant, 'live') == 1 then
    redis.call('HSET', k_kept .. tenant, 'live', 0)
  end
end
