-- turns: what tenants and groups were served in each pool, and the active sets, which order them by it.
-- KEYS active lists tenant books order
-- KEEPS 3 7
-- USES clock settings books rows
-- An *owner* is a tenant or a group of tenants. The name of a group begins with '@', which no tenant's name contains, and
-- its record is in the same family of keys as the tenants' records. The active set of a pool has the groups, and the
-- tenants without a group; `<slug>@<group>` is the set of a group's tenants. Both levels work in the same way.
--
-- An owner's service in a pool is the field `s|<slug>` of its record, in thousandths of a weighted token divided by the
-- owner's weight. So a record has at most one such field for each model that was ever served. The field `g|<slug>` names
-- the group in whose set a tenant's service counts; it is missing or empty for tenants without a group.

-- Returns a cost divided by the owner's weight.
local function by_weight(owner, cost_mwt)
  return math.floor(cost_mwt * 1000 / weight_in(redis.call('HGET', k_tenant .. owner, 'policy_weight_milli')))
end

-- Returns the owner's name of the group that a policy names, or '' for none.
local function group_named(stored)
  return stored and #stored <= 64 and string.match(stored, '^[%w_-]+$') and '@' .. stored or ''
end
local function is_group(owner)
  return string.sub(owner, 1, 1) == '@'
end

-- Returns the group that a field `g|<slug>` names. What another program wrote there counts as none.
local function group_in(stored)
  return stored and string.match(stored, '^@[%w_-]+$') or ''
end

-- Returns the group in whose set an owner is, from its field `g|<slug>`. No group belongs to a group.
local function set_of(owner, stored)
  return is_group(owner) and '' or group_in(stored)
end

-- Whether a tenant belongs to the set in which it was found. If another program put it there, removes it: the tenant has
-- its turns in its own set.
local function belongs_to_set(tenant, slug, group)
  local belongs = group_in(redis.call('HGET', k_tenant .. tenant, 'g|' .. slug)) == group
  if not belongs then
    redis.call('ZREM', k_active .. slug .. group, tenant)
  end
  return belongs
end

-- A service below this was not reached by refunds: another program wrote it.
local MIN_SERVICE_MWT = -1000000000000

-- Returns the key and the field of the virtual time of a pool's set, or of that of a group in the pool.
local function virtual_time_place(slug, group)
  if group == '' then
    return k_books .. slug, 'v'
  end
  return k_tenant .. group, 'v|' .. slug
end

-- Returns the virtual time of a set. If another program has spoiled it, returns the least service in the set, so that a
-- newcomer is not served before all others for as long as they have been served. Returns `default` if there is none yet.
local function virtual_time_of(slug, group, default)
  local stored = redis.call('HGET', virtual_time_place(slug, group))
  if not stored then
    return default or 0
  end
  return number(stored, nil, 0)
    or number(redis.call('ZRANGE', k_active .. slug .. group, 0, 0, 'WITHSCORES')[2], 0, 0)
end

-- The virtual time of a set is the highest service that any owner had when one of its jobs was leased. It never
-- decreases.
local function raise_virtual_time(slug, group, service)
  local key, field = virtual_time_place(slug, group)
  if service > number(redis.call('HGET', key, field), -1, 0) then
    redis.call('HSET', key, field, whole(service))
  end
end

-- Gives an owner whose service another program has spoiled the service of a newcomer, and returns it.
local function restore_service(owner, slug, group)
  local service = virtual_time_of(slug, group)
  redis.call('HSET', k_tenant .. owner, 's|' .. slug, whole(service))
  note_mend('number', k_tenant .. owner .. ' s|' .. slug)
  return service
end

-- Returns the service of an owner that has no field for the pool: its score, if it has queued jobs there and its record
-- was lost. A store of format 1 has one service for all pools, `service_mwt`, of which at most the pool's virtual time
-- counts here: how much of it was received in this pool is unknown.
local function unrecorded_service(owner, slug, group)
  local in_all_pools = number(redis.call('HGET', k_tenant .. owner, 'service_mwt'), nil, MIN_SERVICE_MWT)
  if in_all_pools then
    return math.min(in_all_pools, virtual_time_of(slug, group))
  end
  return number(redis.call('ZSCORE', k_active .. slug .. group, owner), 0, MIN_SERVICE_MWT)
end

-- Returns the service in a pool from its stored form.
local function service_in(owner, slug, group, stored)
  if not stored then
    return unrecorded_service(owner, slug, group)
  end
  return number(stored, nil, MIN_SERVICE_MWT) or restore_service(owner, slug, group)
end

-- Adds `by_mwt` to the owner's service in a pool and, if the owner has queued jobs there, to its score.
local function serve(owner, slug, by_mwt)
  if by_mwt == 0 then
    return
  end
  local field = 's|' .. slug
  local own = redis.call('HMGET', k_tenant .. owner, field, 'g|' .. slug)
  local group = set_of(owner, own[2])
  local service = service_in(owner, slug, group, own[1]) + by_mwt
  redis.call('HSET', k_tenant .. owner, field, whole(service))
  redis.call('ZADD', k_active .. slug .. group, 'XX', whole(service), owner)
end

-- Replaces what a running job was charged by `cost_mwt`: to its tenant, and to the group in which it was claimed, even if
-- the tenant has left that group. The caller stores the job's new charges.
local function charge(job, cost_mwt)
  local own_mwt = by_weight(job.tenant, cost_mwt)
  serve(job.tenant, job.slug, own_mwt - job.charged_mwt)
  job.charged_mwt = own_mwt
  if job.group ~= '' then
    local group_mwt = by_weight(job.group, cost_mwt)
    serve(job.group, job.slug, group_mwt - job.group_charged_mwt)
    job.group_charged_mwt = group_mwt
  end
end

-- Adds to the sums of an owner's queued jobs, in all pools and in one. Returns the group in whose set the owner is.
local function add_sums(owner, slug, jobs, tokens, mwt)
  local key = k_tenant .. owner
  local sums = redis.call('HMGET', key, 'waiting', 'waiting_tokens', 'waiting_mwt', 'n|' .. slug,
    't|' .. slug, 'b|' .. slug, 'g|' .. slug)
  redis.call('HSET', key, 'waiting', whole(number(sums[1], 0) + jobs),
    'waiting_tokens', whole(number(sums[2], 0) + tokens), 'waiting_mwt', whole(number(sums[3], 0) + mwt),
    'n|' .. slug, whole(number(sums[4], 0) + jobs), 't|' .. slug, whole(number(sums[5], 0) + tokens),
    'b|' .. slug, whole(number(sums[6], 0) + mwt))
  return group_in(sums[7])
end

-- A newcomer may get a credit: its service may start below the virtual time, by CREDIT_JOBS times the mean cost of a job.
-- Only an owner that has a policy, or whose first job was admitted more than CREDIT_AGE_MS ago, gets the credit.
-- Otherwise, a client could gain credit by inventing tenant names. There is no credit in turns mode or without full
-- admission.
local CREDIT_JOBS, CREDIT_AGE_MS = 2, 60000
-- The record of a group that was removed is kept for as long as jobs of its tenants may run.
local GROUP_TTL_S = 2 * 86400

-- Returns the service with which an owner enters a set: `service`, which counted in the set of the group `before` so far,
-- or the virtual time minus the credit, if the owner may have it, if that is more. So the owner gains no further advantage from having been idle.
-- The service is never lowered, so that an owner that has received more than others does not gain by leaving and
-- returning. If a tenant has joined or left a group, its service keeps its distance from the virtual time.
local function entry_service(slug, before, group, service, policy, first_ms, without_credit)
  local min_service = virtual_time_of(slug, group)
  if group ~= before then
    service = service - virtual_time_of(slug, before, service) + min_service
  end
  local mean_mwt = redis.call('HGET', k_books .. slug, 'mean_mwt')
  local earns_credit = policy or now_ms - number(first_ms, now_ms) > CREDIT_AGE_MS
  if earns_credit and not without_credit and mean_mwt and read_settings('admission') == 'full'
    and read_settings('fairness') ~= 'turns' then
    min_service = math.max(0, min_service - CREDIT_JOBS * number(mean_mwt, 0))
  end
  return math.max(service, min_service)
end

-- Stores in whose set an owner is. A set of which no job was leased yet has a virtual time too, from which an owner that
-- leaves it keeps its distance.
local function join(owner, slug, group)
  local key, field = virtual_time_place(slug, group)
  redis.call('HSETNX', key, field, 0)
  redis.call('HSET', k_tenant .. owner, 'g|' .. slug, group)
end

-- Whether an owner wants slots of a pool: a tenant with queued or paused jobs there, or a group with such a tenant.
local function wants_slots(owner, slug)
  if is_group(owner) then
    return redis.call('EXISTS', k_active .. slug .. owner) == 1
  end
  return redis.call('EXISTS', k_order .. owner .. '.' .. slug) == 1 or rows_of(slug, 'p', owner) > 0
end

-- Puts a newcomer into its active set, and its group into the pool's. `without_credit` is true for a tenant that comes
-- because its running job is paused.
local function activate(owner, slug, without_credit)
  if redis.call('SADD', k_lists .. owner, slug) == 0 then
    return
  end
  local key = k_tenant .. owner
  local own = redis.call('HMGET', key, 's|' .. slug, 'policy', 'first_ms', 'policy_weight_milli', 'g|' .. slug,
    'policy_group')
  local before, group = set_of(owner, own[5]), is_group(owner) and '' or group_named(own[6])
  local service = entry_service(slug, before, group, service_in(owner, slug, before, own[1]), own[2], own[3],
    without_credit)
  if group ~= before then
    join(owner, slug, group)
  end
  redis.call('ZADD', k_active .. slug .. group, whole(service), owner)
  -- Store the weight that is added to the pool's sum, so that the same weight is subtracted later even if the policy
  -- has changed.
  local weight_milli = weight_in(own[4])
  redis.call('HSET', key, 's|' .. slug, whole(service), 'w|' .. slug, weight_milli)
  if group == '' then
    book(slug, 'weight_milli', weight_milli)
  else
    activate(group, slug, without_credit)
  end
  if is_group(owner) and not own[2] then
    redis.call('EXPIRE', key, GROUP_TTL_S)
  end
end

-- Removes an owner from its active set in a pool if it wants no slots there. If it wants none in all pools, also sets the
-- owner's sums to 0.
local function deactivate(owner, slug)
  local is_leaf, key = not is_group(owner), k_tenant .. owner
  if wants_slots(owner, slug) then
    return
  end
  local own = redis.call('HMGET', key, 'w|' .. slug, 'g|' .. slug, 'n|' .. slug, 't|' .. slug, 'b|' .. slug)
  local group = set_of(owner, own[2])
  if redis.call('SREM', k_lists .. owner, slug) == 1 then
    redis.call('HDEL', key, 'w|' .. slug, 'n|' .. slug, 't|' .. slug, 'b|' .. slug)
    if group == '' then
      book(slug, 'weight_milli', 0 - number(own[1], 0))
    end
    -- If the tenant's sums are not 0, they still contain jobs without a record: their costs were unknown when the jobs
    -- were removed. Subtract what is left from the sums of the pool and of the group.
    local jobs, tokens, mwt = number(own[3], 0), number(own[4], 0), number(own[5], 0)
    if is_leaf and (jobs ~= 0 or mwt ~= 0) then
      book(slug, 'waiting', 0 - jobs)
      book(slug, 'waiting_mwt', 0 - mwt)
      if group ~= '' then
        add_sums(group, slug, -jobs, -tokens, -mwt)
      end
    end
  end
  redis.call('ZREM', k_active .. slug .. group, owner)
  if group ~= '' then
    deactivate(group, slug)
  elseif redis.call('EXISTS', k_active .. slug) == 0 then
    redis.call('HSET', k_books .. slug, 'waiting', 0, 'waiting_mwt', 0, 'weight_milli', 0)
  end
  if redis.call('EXISTS', k_lists .. owner) == 0 and redis.call('EXISTS', key) == 1 then
    redis.call('HSET', key, 'waiting', 0, 'waiting_tokens', 0, 'waiting_mwt', 0)
  end
end

-- Moves a tenant with queued jobs into the set of another group (or, for '', of the pool), with its sums. Its service
-- keeps its distance from the virtual time, and its running jobs stay charged to the group in which they were claimed.
local function regroup(tenant, slug, group)
  local key = k_tenant .. tenant
  local own = redis.call('HMGET', key, 's|' .. slug, 'g|' .. slug, 'w|' .. slug, 'n|' .. slug, 't|' .. slug,
    'b|' .. slug)
  local before = group_in(own[2])
  local service = service_in(tenant, slug, before, own[1])
  service = service - virtual_time_of(slug, before, service) + virtual_time_of(slug, group)
  local jobs, tokens, mwt = number(own[4], 0), number(own[5], 0), number(own[6], 0)
  join(tenant, slug, group)
  redis.call('HSET', key, 's|' .. slug, whole(service))
  redis.call('ZADD', k_active .. slug .. group, whole(service), tenant)
  if group == '' then
    book(slug, 'weight_milli', number(own[3], 0))
  else
    add_sums(group, slug, jobs, tokens, mwt)
    activate(group, slug)
  end
  redis.call('ZREM', k_active .. slug .. before, tenant)
  if before == '' then
    book(slug, 'weight_milli', 0 - number(own[3], 0))
  else
    add_sums(before, slug, -jobs, -tokens, -mwt)
    deactivate(before, slug)
  end
end
