-- waiting: adds jobs to their queues and removes them; no other code changes the queues.
-- KEYS deadlines order active lists tenant books rq_queue rq_job key_jobs kept
-- KEEPS 1 3 7 8
-- USES clock settings rq books kept

-- Returns a cost divided by the tenant's weight.
local function by_weight(tenant, cost_mwt)
  return math.floor(cost_mwt * 1000 / weight_in(redis.call('HGET', k_tenant .. tenant, 'policy_weight_milli')))
end

-- A service below this was not reached by refunds: another program wrote it.
local MIN_SERVICE_MWT = -1000000000000

-- Returns the pool's virtual time from its stored form. If another program has spoiled it, returns the least service of
-- the active set, so that a newcomer is not served before all others for as long as they have been served.
local function virtual_time_of(slug, stored)
  if not stored then
    return 0
  end
  return number(stored, nil, 0) or number(redis.call('ZRANGE', k_active .. slug, 0, 0, 'WITHSCORES')[2], 0, 0)
end

-- Gives a tenant whose service another program has spoiled the service of a newcomer, and returns it.
local function restore_service(tenant, slugs)
  local service = 0
  for i = 1, #slugs do
    service = math.max(service, virtual_time_of(slugs[i], redis.call('HGET', k_books .. slugs[i], 'v')))
  end
  redis.call('HSET', k_tenant .. tenant, 'service_mwt', whole(service))
  note_mend('number', k_tenant .. tenant .. ' service_mwt')
  return service
end

-- Adds `by_mwt` to the tenant's service, and updates the tenant's score in the active set of every pool in which the
-- tenant has queued jobs.
local function serve(tenant, by_mwt)
  if by_mwt == 0 then
    return
  end
  local service = redis.pcall('HINCRBY', k_tenant .. tenant, 'service_mwt', whole(by_mwt))
  local slugs = redis.call('SMEMBERS', k_lists .. tenant)
  if not number(service, nil, MIN_SERVICE_MWT) then
    service = restore_service(tenant, slugs)
  end
  for i = 1, #slugs do
    redis.call('ZADD', k_active .. slugs[i], 'XX', string.format('%.0f', service), tenant)
  end
end

-- A newcomer may get a credit: its service may start below the pool's virtual time, by CREDIT_JOBS times the mean cost
-- of a job. Only a tenant that has a policy, or whose first job was admitted more than CREDIT_AGE_MS ago, gets the
-- credit. Otherwise, a client could gain credit by inventing tenant names. There is no credit in turns mode or without
-- full admission.
local CREDIT_JOBS, CREDIT_AGE_MS = 2, 60000

-- Puts a newcomer into the active set. If the tenant's service is below the virtual time minus the credit, raises
-- it to that value, so that the tenant gains no further advantage from having been idle. Never lowers the service, so
-- that a tenant that has received more than others does not gain by leaving and returning.
local function activate(tenant, slug)
  if redis.call('SADD', k_lists .. tenant, slug) == 0 then
    return
  end
  local own = redis.call('HMGET', k_tenant .. tenant, 'service_mwt', 'policy', 'first_ms', 'policy_weight_milli')
  local pool = redis.call('HMGET', k_books .. slug, 'v', 'mean_mwt')
  local service = number(own[1], nil, MIN_SERVICE_MWT)
  local min_service = virtual_time_of(slug, pool[1])
  if not service then
    service = own[1] and restore_service(tenant, { slug }) or 0
  end
  local earns_credit = own[2] or now_ms - number(own[3], now_ms) > CREDIT_AGE_MS
  if earns_credit and pool[2] and read_settings('admission') == 'full'
    and read_settings('fairness') ~= 'turns' then
    min_service = math.max(0, min_service - CREDIT_JOBS * number(pool[2], 0))
  end
  if service < min_service then
    serve(tenant, min_service - service)
    service = min_service
  end
  redis.call('ZADD', k_active .. slug, string.format('%.0f', service), tenant)
  -- Store the weight that is added to the pool's sum, so that the same weight is subtracted later even if the policy
  -- has changed.
  local weight_milli = weight_in(own[4])
  redis.call('HSET', k_tenant .. tenant, 'w|' .. slug, weight_milli)
  book(slug, 'weight_milli', weight_milli)
end

-- Removes a tenant from a pool's active set if the tenant's queue in this pool is empty. If the tenant's queues in all
-- pools are empty, also sets the tenant's sums to 0.
local function deactivate(tenant, slug)
  if redis.call('EXISTS', k_order .. tenant .. '.' .. slug) == 1 then
    return
  end
  if redis.call('SREM', k_lists .. tenant, slug) == 1 then
    local own = redis.call('HMGET', k_tenant .. tenant, 'w|' .. slug, 'b|' .. slug)
    redis.call('HDEL', k_tenant .. tenant, 'w|' .. slug, 'b|' .. slug)
    book(slug, 'weight_milli', 0 - number(own[1], 0))
    -- If the tenant's sum is not 0, it still contains the costs of jobs without a record: these costs were unknown when
    -- the jobs were removed. Subtract what is left in the tenant's sum from the pool's sum.
    local left_mwt = number(own[2], 0)
    if left_mwt ~= 0 then
      book(slug, 'waiting_mwt', 0 - left_mwt)
    end
  end
  redis.call('ZREM', k_active .. slug, tenant)
  if redis.call('EXISTS', k_active .. slug) == 0 then
    redis.call('HSET', k_books .. slug, 'waiting_mwt', 0, 'weight_milli', 0)
  end
  if redis.call('EXISTS', k_lists .. tenant) == 0 and redis.call('EXISTS', k_tenant .. tenant) == 1 then
    redis.call('HSET', k_tenant .. tenant, 'waiting', 0, 'waiting_tokens', 0, 'waiting_mwt', 0)
  end
end

-- Adds a queued job to the sums of its tenant and its pool (`jobs` is 1), or subtracts it (`jobs` is -1).
local function tally(job, jobs)
  local tenant, own = k_tenant .. job.tenant, 'b|' .. job.slug
  local sums = redis.call('HMGET', tenant, 'waiting', 'waiting_tokens', 'waiting_mwt', own)
  redis.call('HSET', tenant, 'waiting', number(sums[1], 0) + jobs,
    'waiting_tokens', whole(number(sums[2], 0) + jobs * (job.prompt_tokens + job.max_tokens)),
    'waiting_mwt', whole(number(sums[3], 0) + jobs * job.cost_mwt),
    own, whole(number(sums[4], 0) + jobs * job.cost_mwt))
  book(job.slug, 'waiting_mwt', 0 + jobs * job.cost_mwt)
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
  redis.call('ZADD', order, string.format('%.0f', job.latest_us), job.id)
  local rank = redis.call('ZRANK', order, job.id)
  local next_id = redis.call('ZRANGE', order, rank + 1, rank + 1)[1]
  rq_enlist(job.queue, job.id, next_id)
  redis.call('ZADD', k_deadlines, job.wanted_ms, job.id)
  enlist_for_key(job)
  tally(job, 1)
  activate(job.tenant, job.slug)
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

-- Removes a job from its queue.
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
  deactivate(job.tenant, job.slug)
  note_head(order)
end

-- Removes from a queue an id that has no record or whose job is not queued. The job's cost is unknown, so the tenant's
-- sums stay too high until all of the tenant's queues are empty or recount corrects the sums.
local function strike(tenant, slug, id)
  redis.call('LREM', k_rq_queue .. tenant .. '.' .. slug, 1, id)
  redis.call('ZREM', k_order .. tenant .. '.' .. slug, id)
  deactivate(tenant, slug)
  if has_no_inflight_jobs(tenant) and redis.pcall('HEXISTS', k_kept .. tenant, 'live') == 1 then
    redis.call('HSET', k_kept .. tenant, 'live', 0)
  end
end
