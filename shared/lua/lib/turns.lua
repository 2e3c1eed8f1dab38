-- turns: what each tenant was served in each pool, and the active sets, which order the tenants by it.
-- KEYS active lists tenant books order
-- KEEPS 3 7
-- USES clock settings books
-- A tenant's service in a pool is the field `s|<slug>` of the tenant's hash, in thousandths of a weighted token divided
-- by the tenant's weight. So a hash has at most one such field for each model that was ever served.

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
local function restore_service(tenant, slug)
  local service = virtual_time_of(slug, redis.call('HGET', k_books .. slug, 'v'))
  redis.call('HSET', k_tenant .. tenant, 's|' .. slug, whole(service))
  note_mend('number', k_tenant .. tenant .. ' s|' .. slug)
  return service
end

-- Returns the service of a tenant that has no field for the pool: its score, if it has queued jobs there and its record
-- was lost. A store of format 1 has one service for all pools, `service_mwt`, of which at most the pool's virtual time
-- counts here: how much of it was received in this pool is unknown.
local function unrecorded_service(tenant, slug)
  local in_all_pools = number(redis.call('HGET', k_tenant .. tenant, 'service_mwt'), nil, MIN_SERVICE_MWT)
  if in_all_pools then
    return math.min(in_all_pools, virtual_time_of(slug, redis.call('HGET', k_books .. slug, 'v')))
  end
  return number(redis.call('ZSCORE', k_active .. slug, tenant), 0, MIN_SERVICE_MWT)
end

-- Returns the service in a pool from its stored form.
local function service_in(tenant, slug, stored)
  if not stored then
    return unrecorded_service(tenant, slug)
  end
  return number(stored, nil, MIN_SERVICE_MWT) or restore_service(tenant, slug)
end

-- Adds `by_mwt` to the tenant's service in a pool and, if the tenant has queued jobs there, to its score.
local function serve(tenant, slug, by_mwt)
  if by_mwt == 0 then
    return
  end
  local field = 's|' .. slug
  local service = service_in(tenant, slug, redis.call('HGET', k_tenant .. tenant, field)) + by_mwt
  redis.call('HSET', k_tenant .. tenant, field, whole(service))
  redis.call('ZADD', k_active .. slug, 'XX', whole(service), tenant)
end

-- A newcomer may get a credit: its service may start below the pool's virtual time, by CREDIT_JOBS times the mean cost
-- of a job. Only a tenant that has a policy, or whose first job was admitted more than CREDIT_AGE_MS ago, gets the
-- credit. Otherwise, a client could gain credit by inventing tenant names. There is no credit in turns mode or without
-- full admission.
local CREDIT_JOBS, CREDIT_AGE_MS = 2, 60000

-- Puts a newcomer into the active set. If the tenant's service in the pool is below the virtual time minus the credit,
-- raises it to that value, so that the tenant gains no further advantage from having been idle. Never lowers the
-- service, so that a tenant that has received more than others does not gain by leaving and returning.
local function activate(tenant, slug)
  if redis.call('SADD', k_lists .. tenant, slug) == 0 then
    return
  end
  local own = redis.call('HMGET', k_tenant .. tenant, 's|' .. slug, 'policy', 'first_ms', 'policy_weight_milli')
  local pool = redis.call('HMGET', k_books .. slug, 'v', 'mean_mwt')
  local service, min_service = service_in(tenant, slug, own[1]), virtual_time_of(slug, pool[1])
  local earns_credit = own[2] or now_ms - number(own[3], now_ms) > CREDIT_AGE_MS
  if earns_credit and pool[2] and read_settings('admission') == 'full'
    and read_settings('fairness') ~= 'turns' then
    min_service = math.max(0, min_service - CREDIT_JOBS * number(pool[2], 0))
  end
  service = math.max(service, min_service)
  redis.call('ZADD', k_active .. slug, whole(service), tenant)
  -- Store the weight that is added to the pool's sum, so that the same weight is subtracted later even if the policy
  -- has changed.
  local weight_milli = weight_in(own[4])
  redis.call('HSET', k_tenant .. tenant, 's|' .. slug, whole(service), 'w|' .. slug, weight_milli)
  book(slug, 'weight_milli', weight_milli)
end

-- Removes a tenant from a pool's active set if the tenant's queue in this pool is empty. If the tenant's queues in all
-- pools are empty, also sets the tenant's sums to 0.
local function deactivate(tenant, slug)
  if redis.call('EXISTS', k_order .. tenant .. '.' .. slug) == 1 then
    return
  end
  if redis.call('SREM', k_lists .. tenant, slug) == 1 then
    local own = redis.call('HMGET', k_tenant .. tenant, 'w|' .. slug, 'b|' .. slug, 'n|' .. slug)
    redis.call('HDEL', k_tenant .. tenant, 'w|' .. slug, 'b|' .. slug, 'n|' .. slug)
    book(slug, 'weight_milli', 0 - number(own[1], 0))
    -- If the tenant's sum is not 0, it still contains the costs of jobs without a record: these costs were unknown when
    -- the jobs were removed. Subtract what is left in the tenant's sums from the pool's sums.
    local left_mwt, left_jobs = number(own[2], 0), number(own[3], 0)
    if left_mwt ~= 0 or left_jobs ~= 0 then
      book(slug, 'waiting_mwt', 0 - left_mwt)
      book(slug, 'waiting', 0 - left_jobs)
    end
  end
  redis.call('ZREM', k_active .. slug, tenant)
  if redis.call('EXISTS', k_active .. slug) == 0 then
    redis.call('HSET', k_books .. slug, 'waiting', 0, 'waiting_mwt', 0, 'weight_milli', 0)
  end
  if redis.call('EXISTS', k_lists .. tenant) == 0 and redis.call('EXISTS', k_tenant .. tenant) == 1 then
    redis.call('HSET', k_tenant .. tenant, 'waiting', 0, 'waiting_tokens', 0, 'waiting_mwt', 0)
  end
end
