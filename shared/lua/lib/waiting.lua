-- waiting: puts jobs into their tenant's list and takes them out; the only place that does.
-- KEYS config deadlines order active lists tenant books rq_queue rq_job
-- KEEPS 1 3 7 8
-- USES clock rq books

-- What a cost comes to by the tenant's weight.
local function by_weight(tenant, cost_mwt)
  return math.floor(cost_mwt * 1000 / weight_in(redis.call('HGET', k_tenant .. tenant, 'policy_weight_milli')))
end

-- Adds to the tenant's service and to its place in every pool where it waits.
local function serve(tenant, by_mwt)
  if by_mwt == 0 then
    return
  end
  local service = redis.call('HINCRBY', k_tenant .. tenant, 'service_mwt', by_mwt)
  local slugs = redis.call('SMEMBERS', k_lists .. tenant)
  for i = 1, #slugs do
    redis.call('ZADD', k_active .. slugs[i], 'XX', string.format('%.0f', service), tenant)
  end
end

-- How far below the pool's virtual time a newcomer may start: two mean jobs, for tenants with a policy or older than
-- a minute. A credit for every invented name would be an attack; in turns mode a turn is a turn.
local CREDIT_JOBS, CREDIT_AGE_MS = 2, 60000

-- A tenant that had nothing waiting starts no lower than that: debt stays, credit does not.
local function activate(tenant, slug)
  if redis.call('SADD', k_lists .. tenant, slug) == 0 then
    return
  end
  local own = redis.call('HMGET', k_tenant .. tenant, 'service_mwt', 'policy', 'first_ms', 'policy_weight_milli')
  local pool = redis.call('HMGET', k_books .. slug, 'v', 'mean_mwt')
  local service, least = tonumber(own[1] or 0), tonumber(pool[1] or 0)
  local known = own[2] or now_ms - (tonumber(own[3] or now_ms) or now_ms) > CREDIT_AGE_MS
  if known and pool[2] and redis.call('HGET', k_config, 'admission') == 'full'
    and redis.call('HGET', k_config, 'fairness') ~= 'turns' then
    least = math.max(0, least - CREDIT_JOBS * tonumber(pool[2]))
  end
  if service < least then
    serve(tenant, least - service)
    service = least
  end
  redis.call('ZADD', k_active .. slug, string.format('%.0f', service), tenant)
  -- The weight counted now is the weight taken off later, whatever the policy says by then.
  local weight_milli = weight_in(own[4])
  redis.call('HSET', k_tenant .. tenant, 'w|' .. slug, weight_milli)
  book(slug, 'weight_milli', weight_milli)
end

-- A tenant whose list has become empty has no place in the pool; one without lists waits with nothing.
local function deactivate(tenant, slug)
  if redis.call('EXISTS', k_order .. tenant .. '.' .. slug) == 1 then
    return
  end
  if redis.call('SREM', k_lists .. tenant, slug) == 1 then
    local own = redis.call('HMGET', k_tenant .. tenant, 'w|' .. slug, 'b|' .. slug)
    redis.call('HDEL', k_tenant .. tenant, 'w|' .. slug, 'b|' .. slug)
    book(slug, 'weight_milli', 0 - (tonumber(own[1] or 0) or 0))
    -- What a job without a record still counts for.
    local left_mwt = tonumber(own[2] or 0) or 0
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

-- One more or one less waiting job in its tenant's and its pool's sums.
local function tally(job, jobs)
  local tenant, own = k_tenant .. job.tenant, 'b|' .. job.slug
  local sums = redis.call('HMGET', tenant, 'waiting', 'waiting_tokens', 'waiting_mwt', own)
  redis.call('HSET', tenant, 'waiting', (tonumber(sums[1] or 0) or 0) + jobs,
    'waiting_tokens', whole((tonumber(sums[2] or 0) or 0) + jobs * (job.prompt_tokens + job.max_tokens)),
    'waiting_mwt', whole((tonumber(sums[3] or 0) or 0) + jobs * job.cost_mwt),
    own, whole((tonumber(sums[4] or 0) or 0) + jobs * job.cost_mwt))
  book(job.slug, 'waiting_mwt', 0 + jobs * job.cost_mwt)
end

local function enlist(job)
  local order = k_order .. job.queue
  redis.call('ZADD', order, string.format('%.0f', job.latest_us), job.id)
  local rank = redis.call('ZRANK', order, job.id)
  local after = redis.call('ZRANGE', order, rank + 1, rank + 1)[1]
  rq_enlist(job.queue, job.id, after)
  redis.call('ZADD', k_deadlines, job.wanted_ms, job.id)
  tally(job, 1)
  activate(job.tenant, job.slug)
  if rank == 0 then
    redis.call('HSETNX', k_rq_job .. job.id, 'penstock_head_ms', now_ms)
  end
  return rank
end

-- From here on the job at the head of its tenant's list waits for its tenant's turn, and no longer for its own.
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
  tally(job, -1)
  deactivate(job.tenant, job.slug)
  note_head(order)
end

-- Takes out an id that has no record, or one that does not wait. Its cost is unknown: the sums are true again
-- when the tenant's last list is empty, or when they are counted anew.
local function strike(tenant, slug, id)
  redis.call('LREM', k_rq_queue .. tenant .. '.' .. slug, 1, id)
  redis.call('ZREM', k_order .. tenant .. '.' .. slug, id)
  deactivate(tenant, slug)
end
