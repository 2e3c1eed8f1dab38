-- waiting: puts jobs into their tenant's list and takes them out; the only place that does.
-- KEYS deadlines order active lists tenant pools rq_queue
-- KEEPS 1 3 7 8
-- USES rq

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

-- A tenant that had nothing waiting starts no lower than the pool's virtual time: debt stays, credit does not.
local function activate(tenant, slug)
  if redis.call('SADD', k_lists .. tenant, slug) == 0 then
    return
  end
  local service = tonumber(redis.call('HGET', k_tenant .. tenant, 'service_mwt') or 0)
  local virtual = tonumber(redis.call('HGET', k_pools, 'v|' .. slug) or 0)
  if service < virtual then
    serve(tenant, virtual - service)
    service = virtual
  end
  redis.call('ZADD', k_active .. slug, string.format('%.0f', service), tenant)
end

-- A tenant whose list has become empty has no place in the pool; one without lists waits with nothing.
local function deactivate(tenant, slug)
  if redis.call('EXISTS', k_order .. tenant .. '.' .. slug) == 1 then
    return
  end
  redis.call('SREM', k_lists .. tenant, slug)
  redis.call('ZREM', k_active .. slug, tenant)
  if redis.call('EXISTS', k_lists .. tenant) == 0 and redis.call('EXISTS', k_tenant .. tenant) == 1 then
    redis.call('HSET', k_tenant .. tenant, 'waiting', 0, 'waiting_tokens', 0, 'waiting_mwt', 0)
  end
end

local function enlist(job)
  local order = k_order .. job.queue
  redis.call('ZADD', order, string.format('%.0f', job.latest_us), job.id)
  local rank = redis.call('ZRANK', order, job.id)
  local after = redis.call('ZRANGE', order, rank + 1, rank + 1)[1]
  rq_enlist(job.queue, job.id, after)
  redis.call('ZADD', k_deadlines, job.deadline_ms, job.id)
  local tenant = k_tenant .. job.tenant
  redis.call('HINCRBY', tenant, 'waiting', 1)
  redis.call('HINCRBY', tenant, 'waiting_tokens', job.prompt_tokens + job.max_tokens)
  redis.call('HINCRBY', tenant, 'waiting_mwt', job.cost_mwt)
  activate(job.tenant, job.slug)
  return rank
end

local function delist(job)
  local order = k_order .. job.queue
  redis.call('ZREM', k_deadlines, job.id)
  redis.call('LREM', k_rq_queue .. job.queue, 1, job.id)
  if redis.call('ZREM', order, job.id) == 0 then
    return
  end
  local tenant = k_tenant .. job.tenant
  redis.call('HINCRBY', tenant, 'waiting', -1)
  -- 0 - n, since -n of nothing would be written as -0, which is no integer to HINCRBY before Redis 7.
  redis.call('HINCRBY', tenant, 'waiting_tokens', 0 - job.prompt_tokens - job.max_tokens)
  redis.call('HINCRBY', tenant, 'waiting_mwt', 0 - job.cost_mwt)
  deactivate(job.tenant, job.slug)
end

-- Takes out an id that has no record, or one that does not wait. Its cost is unknown: the sums are true again
-- when the tenant's last list is empty, or when they are counted anew.
local function strike(tenant, slug, id)
  redis.call('LREM', k_rq_queue .. tenant .. '.' .. slug, 1, id)
  redis.call('ZREM', k_order .. tenant .. '.' .. slug, id)
  deactivate(tenant, slug)
end
