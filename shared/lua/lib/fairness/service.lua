-- service: keeps the service of tenants and groups in each pool, and the charges of running jobs.
-- KEYS active batch tenant books
-- KEEPS 7
-- USES clock pool_record priority
-- An *owner* is a tenant or a group of tenants. The name of a group begins with '@', which no tenant's name contains,
-- and its record is in the same family of keys as the tenants' records. The active set of a pool has the groups, and
-- the tenants without a group; `<slug>@<group>` is the set of a group's tenants. Both levels work in the same way.
--
-- An owner's service in a pool is the field `s|<slug>` of its record, in thousandths of a weighted token divided by the
-- owner's weight. So a record has at most one such field for each model that was ever served. The field `g|<slug>`
-- names the group in whose set a tenant's service counts; it is missing or empty for tenants without a group. The
-- active sets and the batch sets (lib/fairness/priority.lua) have the same scores and the same virtual times.

-- Returns a cost by a stored weight of an owner.
local function weighted(cost_mwt, stored)
  return math.floor(cost_mwt * 1000 / pool_record.weight_in(stored))
end

local function by_weight(owner, cost_mwt)
  return weighted(cost_mwt, redis.call('HGET', k_tenant .. owner, 'policy_weight_milli'))
end

-- Returns the owner's name of the group that a policy names, or '' for none.
local function group_named(stored)
  return stored and #stored <= 64 and string.match(stored, '^[%w_-]+$') and '@' .. stored or ''
end
local function is_group(owner)
  return string.sub(owner, 1, 1) == '@'
end

-- Returns the group that a field `g|<slug>` names. A value that another program wrote counts as no group.
local function group_in(stored)
  return stored and string.match(stored, '^@[%w_-]+$') or ''
end

-- Returns the group in whose set an owner is, from its field `g|<slug>`. No group belongs to a group.
local function set_of(owner, stored)
  return is_group(owner) and '' or group_in(stored)
end

-- Whether a tenant belongs to the set in which it was found. If another program put it there, removes it: the tenant
-- has its turns in its own set.
local function belongs_to_set(tenant, slug, group, is_batch)
  local belongs = group_in(redis.call('HGET', k_tenant .. tenant, 'g|' .. slug)) == group
  if not belongs then
    redis.call('ZREM', priority.set_key(slug, group, is_batch), tenant)
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
-- newcomer is not served before all others for as long as they have been served. Returns `default` if the set has no
-- virtual time yet.
local function virtual_time_of(slug, group, default)
  local stored = redis.call('HGET', virtual_time_place(slug, group))
  if not stored then
    return default or 0
  end
  return number(stored, nil, 0)
    or number(redis.call('ZRANGE', k_active .. slug .. group, 0, 0, 'WITHSCORES')[2]
      or redis.call('ZRANGE', k_batch .. slug .. group, 0, 0, 'WITHSCORES')[2], 0, 0)
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
-- was lost. A store of format 1 has one service for all pools, `service_mwt`. It counts here up to the pool's virtual
-- time, because how much of it was received in this pool is unknown.
local function unrecorded_service(owner, slug, group)
  local in_all_pools = number(redis.call('HGET', k_tenant .. owner, 'service_mwt'), nil, MIN_SERVICE_MWT)
  if in_all_pools then
    return math.min(in_all_pools, virtual_time_of(slug, group))
  end
  return number(redis.call('ZSCORE', k_active .. slug .. group, owner)
    or redis.call('ZSCORE', k_batch .. slug .. group, owner), 0, MIN_SERVICE_MWT)
end

local function service_in(owner, slug, group, stored)
  if not stored then
    return unrecorded_service(owner, slug, group)
  end
  return number(stored, nil, MIN_SERVICE_MWT) or restore_service(owner, slug, group)
end

-- Replaces an owner's charge for a running job, `charged_mwt` by the owner's weight, by that for `cost_mwt`: in its
-- service in the pool and, if the owner has queued jobs there, in its score. Returns the new charge by the weight.
local function charge_owner(owner, slug, cost_mwt, charged_mwt)
  local field = 's|' .. slug
  local own = read_fields(k_tenant .. owner, { field, 'g|' .. slug, 'policy_weight_milli' })
  local own_mwt = weighted(cost_mwt, own.policy_weight_milli)
  if own_mwt == charged_mwt then
    return own_mwt
  end
  local group = set_of(owner, own['g|' .. slug])
  local service = service_in(owner, slug, group, own[field]) + own_mwt - charged_mwt
  redis.call('HSET', k_tenant .. owner, field, whole(service))
  if redis.call('ZADD', k_active .. slug .. group, 'XX', 'CH', whole(service), owner) == 0 then
    redis.call('ZADD', k_batch .. slug .. group, 'XX', whole(service), owner)
  end
  return own_mwt
end

-- Replaces the charge of a running job by `cost_mwt`, for its tenant and for the group in which it was claimed, even if
-- the tenant has left that group. The caller stores the job's new charges.
local function charge(job, cost_mwt)
  job.charged_mwt = charge_owner(job.tenant, job.slug, cost_mwt, job.charged_mwt)
  if job.group ~= '' then
    job.group_charged_mwt = charge_owner(job.group, job.slug, cost_mwt, job.group_charged_mwt)
  end
end
