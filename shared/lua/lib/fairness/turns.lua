-- turns: the active sets, which order the tenants and groups with queued jobs by their service, and their sums.
-- KEYS active batch lists tenant books
-- KEEPS 3 7
-- USES clock settings pool_record priority service pausing

-- The sums of some queued jobs are a table: `jobs`, their `tokens` and cost (`mwt`), and of the batch jobs among them
-- `batch_jobs` and `batch_mwt`. Returns those that an owner's record has for a pool.
local function sums_in(own, slug)
  return { jobs = number(own['n|' .. slug], 0), tokens = number(own['t|' .. slug], 0),
    mwt = number(own['b|' .. slug], 0), batch_jobs = number(own['bn|' .. slug], 0),
    batch_mwt = number(own['bb|' .. slug], 0) }
end

-- Adds to the part of an owner's sums in a pool that is due to batch jobs.
local function add_batch_sums(owner, slug, jobs, mwt)
  if jobs ~= 0 or mwt ~= 0 then
    redis.call('HINCRBY', k_tenant .. owner, 'bn|' .. slug, whole(0 + jobs))
    redis.call('HINCRBY', k_tenant .. owner, 'bb|' .. slug, whole(0 + mwt))
  end
end

-- Adds sums to those of an owner, in all pools and in one, or (`times` is -1) subtracts them. Returns the group in
-- whose set the owner is.
local function add_sums(owner, slug, sums, times)
  local key, jobs, tokens, mwt = k_tenant .. owner, times * sums.jobs, times * sums.tokens, times * sums.mwt
  local own = read_fields(key, { 'waiting', 'waiting_tokens', 'waiting_mwt', 'n|' .. slug, 't|' .. slug, 'b|' .. slug,
    'g|' .. slug })
  redis.call('HSET', key, 'waiting', whole(number(own.waiting, 0) + jobs),
    'waiting_tokens', whole(number(own.waiting_tokens, 0) + tokens),
    'waiting_mwt', whole(number(own.waiting_mwt, 0) + mwt), 'n|' .. slug, whole(number(own['n|' .. slug], 0) + jobs),
    't|' .. slug, whole(number(own['t|' .. slug], 0) + tokens), 'b|' .. slug, whole(number(own['b|' .. slug], 0) + mwt))
  add_batch_sums(owner, slug, times * sums.batch_jobs, times * sums.batch_mwt)
  return service.group_in(own['g|' .. slug])
end

local function add_pool_sums(slug, sums, times)
  pool_record.book(slug, 'waiting', 0 + times * sums.jobs)
  pool_record.book(slug, 'waiting_mwt', 0 + times * sums.mwt)
  if sums.batch_mwt ~= 0 then
    pool_record.book(slug, 'batch_mwt', times * sums.batch_mwt)
  end
end

-- Adds to the sum of the weights of the owners in a pool's active set, or of those in its batch set.
local function add_weight(slug, is_batch, weight_milli)
  pool_record.book(slug, is_batch and 'batch_weight_milli' or 'weight_milli', weight_milli)
end

-- A newcomer may get a credit: its service may start below the virtual time, by CREDIT_JOBS times the mean cost of a
-- job. Only an owner that has a policy, or whose first job was admitted more than CREDIT_AGE_MS ago, gets the credit.
-- Otherwise, a client could gain credit by inventing tenant names. There is no credit in turns mode or without full
-- admission. Where jobs are paused, the credit is at most the work of the pool in a quantum: after long answers, a
-- newcomer would otherwise take all slots for as long as they are.
local CREDIT_JOBS, CREDIT_AGE_MS = 2, 60000
-- The record of a group that was removed is kept for as long as jobs of its tenants may run.
local GROUP_TTL_S = 2 * 86400

local function credit_mwt_of(slug, mean_mwt)
  local mu_wtps = number(redis.call('HGET', k_books .. slug, 'mu_wtps'), 0, 0)
  local most_mwt = mu_wtps > 0 and pausing.pool_may_pause(slug) and math.floor(mu_wtps
    * settings.read_setting('quantum_ms')) or math.huge
  return math.min(CREDIT_JOBS * mean_mwt, most_mwt)
end

-- Owners whose services differ by less than this are taken to have the same: a weighted token, or a turn in turns mode.
local EQUAL_MWT = 1000

-- Returns the service, raised so that the newcomer goes after the owners of the set that have the same. The order of
-- names would decide otherwise, and no prediction could know who comes later and goes first.
local function behind_equals(slug, group, service)
  local last = redis.call('ZREVRANGEBYSCORE', k_active .. slug .. group, whole(service + EQUAL_MWT - 2), whole(service),
    'WITHSCORES', 'LIMIT', 0, 1)
  return last[2] and tonumber(last[2]) + 1 or service
end

-- Returns the service with which an owner enters a set: `service`, which counted in the set of the group `before` so
-- far, or the virtual time minus the credit if that is more, without the credit if the owner may not have it. So the
-- owner gains no further advantage from having been idle.
-- The service is never lowered, so that an owner that has received more than others does not gain by leaving and
-- returning. If a tenant has joined or left a group, its service keeps its distance from the virtual time.
local function entry_service(slug, before, group, service, policy, first_ms, without_credit)
  local min_service = service.virtual_time_of(slug, group)
  if group ~= before then
    service = service - service.virtual_time_of(slug, before, service) + min_service
  end
  local mean_mwt = redis.call('HGET', k_books .. slug, 'mean_mwt')
  local earns_credit = policy or now_ms - number(first_ms, now_ms) > CREDIT_AGE_MS
  if earns_credit and not without_credit and mean_mwt and settings.read_setting('admission') == 'full'
    and settings.read_setting('fairness') ~= 'turns' then
    min_service = math.max(0, min_service - credit_mwt_of(slug, number(mean_mwt, 0)))
  end
  return behind_equals(slug, group, math.max(service, min_service))
end

-- Returns an owner's score in its active set, or the one with which it would enter the set; and whether it is in the
-- set.
local function score_of(asked, owner, group)
  local score = number(redis.call('ZSCORE', priority.set_key(asked.slug, group, asked.is_batch), owner))
  if score then
    return score, true
  end
  local own = read_fields(k_tenant .. owner, { 's|' .. asked.slug, 'policy', 'first_ms', 'g|' .. asked.slug })
  return entry_service(asked.slug, service.group_in(own['g|' .. asked.slug]), group, number(own['s|'
    .. asked.slug], 0, service.MIN_SERVICE_MWT), own.policy, own.first_ms)
end

-- Stores the set that an owner belongs to. A set from which no job was leased yet has a virtual time too, so that an
-- owner that leaves it keeps its distance from that time.
local function join(owner, slug, group)
  local key, field = service.virtual_time_place(slug, group)
  redis.call('HSETNX', key, field, 0)
  redis.call('HSET', k_tenant .. owner, 'g|' .. slug, group)
end

-- Moves an owner from its active set to the batch set beside it (`to_batch`) or back, and its group as well if that
-- then has the other kind of jobs only. Returns 1 if the owner was in the other set, else 0. An owner that comes back
-- gains no advantage from what its batch jobs left to others: it enters the active set like a newcomer.
local function change_set(owner, slug, to_batch, without_credit)
  local key = k_tenant .. owner
  local own = read_fields(key, { 's|' .. slug, 'policy', 'first_ms', 'w|' .. slug, 'g|' .. slug })
  local group = service.set_of(owner, own['g|' .. slug])
  if redis.call('ZREM', priority.set_key(slug, group, not to_batch), owner) == 0 then
    return 0
  end
  local service = service.service_in(owner, slug, group, own['s|' .. slug])
  if not to_batch then
    service = entry_service(slug, group, group, service, own.policy, own.first_ms, without_credit)
    redis.call('HSET', key, 's|' .. slug, whole(service))
  end
  redis.call('ZADD', priority.set_key(slug, group, to_batch), whole(service), owner)
  if group == '' then
    local weight_milli = number(own['w|' .. slug], 0, 0)
    add_weight(slug, not to_batch, 0 - weight_milli)
    add_weight(slug, to_batch, weight_milli)
  elseif not to_batch or redis.call('EXISTS', k_active .. slug .. group) == 0 then
    change_set(group, slug, to_batch, without_credit)
  end
  return 1
end

-- Whether an owner wants slots of a pool: a tenant with queued or paused jobs there, or a group with such a tenant.
local function wants_slots(owner, slug)
  return priority.has_only_batch(owner, slug) ~= nil
end

-- Puts a newcomer with a queued or paused job into its active set, or into the batch set for a batch job, and its group
-- into the pool's. `without_credit` is true for a tenant that comes because its running job is paused. Returns whether
-- the owner was a newcomer.
local function activate(owner, slug, is_batch, without_credit)
  if redis.call('SADD', k_lists .. owner, slug) == 0 then
    return false
  end
  local key = k_tenant .. owner
  local own = read_fields(key, { 's|' .. slug, 'policy', 'first_ms', 'policy_weight_milli', 'g|' .. slug,
    'policy_group' })
  local before, group = service.set_of(owner, own['g|' .. slug]), service.is_group(owner) and ''
    or service.group_named(own.policy_group)
  local service = entry_service(slug, before, group, service.service_in(owner, slug, before, own['s|' .. slug]),
    own.policy, own.first_ms, without_credit)
  if group ~= before then
    join(owner, slug, group)
  end
  redis.call('ZADD', priority.set_key(slug, group, is_batch), whole(service), owner)
  redis.call('ZREM', priority.set_key(slug, group, not is_batch), owner)
  -- Store the weight that is added to the pool's sum, so that the same weight is subtracted later even if the policy
  -- has changed.
  local weight_milli = pool_record.weight_in(own.policy_weight_milli)
  redis.call('HSET', key, 's|' .. slug, whole(service), 'w|' .. slug, weight_milli)
  if group == '' then
    add_weight(slug, is_batch, weight_milli)
  elseif not activate(group, slug, is_batch, without_credit) and not is_batch then
    change_set(group, slug, false, without_credit)
  end
  if service.is_group(owner) and not own.policy then
    redis.call('EXPIRE', key, GROUP_TTL_S)
  end
  return true
end

-- Removes from a pool's sums the rest in the sums of an owner that leaves its set: jobs without a record, whose costs
-- were unknown when they were removed.
local function clear_rest(slug, group, rest)
  if rest.jobs ~= 0 or rest.mwt ~= 0 or rest.batch_mwt ~= 0 then
    add_pool_sums(slug, rest, -1)
    if group ~= '' then
      add_sums(group, slug, rest, -1)
    end
  end
end

-- Called when a job has left an owner's queue or its pause, or a tenant a group's set. Removes an owner that wants no
-- slots of a pool from its set there; if it wants none in all pools, also sets its sums to 0. Moves an owner to the
-- batch set if only batch jobs are left.
local function deactivate(owner, slug)
  local key, only_batch = k_tenant .. owner, priority.has_only_batch(owner, slug)
  if only_batch ~= nil then
    if only_batch or service.is_group(owner) then
      change_set(owner, slug, only_batch)
    end
    return
  end
  local own = read_fields(key, { 'n|' .. slug, 't|' .. slug, 'b|' .. slug, 'bn|' .. slug, 'bb|' .. slug, 'w|' .. slug,
    'g|' .. slug, 'waiting', 'waiting_tokens', 'waiting_mwt' })
  local group = service.set_of(owner, own['g|' .. slug])
  local was_batch = redis.call('ZREM', k_active .. slug .. group, owner) == 0
    and redis.call('ZREM', k_batch .. slug .. group, owner) == 1
  if redis.call('SREM', k_lists .. owner, slug) == 1 then
    redis.call('HDEL', key, 'w|' .. slug, 'n|' .. slug, 't|' .. slug, 'b|' .. slug, 'bn|' .. slug, 'bb|' .. slug)
    if group == '' then
      add_weight(slug, was_batch, 0 - number(own['w|' .. slug], 0))
    end
    if not service.is_group(owner) then
      clear_rest(slug, group, sums_in(own, slug))
    end
  end
  if group ~= '' then
    deactivate(group, slug)
  elseif not priority.is_pool_wanted(slug) then
    redis.call('HSET', k_books .. slug, 'waiting', 0, 'waiting_mwt', 0, 'weight_milli', 0)
    redis.call('HDEL', k_books .. slug, 'batch_mwt', 'batch_weight_milli')
  end
  local has_rest = own.waiting ~= '0' or own.waiting_tokens ~= '0' or own.waiting_mwt ~= '0'
  if has_rest and redis.call('EXISTS', k_lists .. owner) == 0 and redis.call('EXISTS', key) == 1 then
    redis.call('HSET', key, 'waiting', 0, 'waiting_tokens', 0, 'waiting_mwt', 0)
  end
end

-- Moves a tenant with queued jobs into the set of another group (or, for '', of the pool), with its sums. Its service
-- keeps its distance from the virtual time, and its running jobs stay charged to the group in which they were claimed.
local function regroup(tenant, slug, group)
  local key = k_tenant .. tenant
  local own = read_fields(key, { 's|' .. slug, 'g|' .. slug, 'w|' .. slug, 'n|' .. slug, 't|' .. slug, 'b|' .. slug,
    'bn|' .. slug, 'bb|' .. slug })
  local before, is_batch = service.group_in(own['g|' .. slug]), priority.has_only_batch(tenant, slug) or false
  local service = service.service_in(tenant, slug, before, own['s|' .. slug])
  service = service - service.virtual_time_of(slug, before, service) + service.virtual_time_of(slug, group)
  local sums = sums_in(own, slug)
  join(tenant, slug, group)
  redis.call('HSET', key, 's|' .. slug, whole(service))
  redis.call('ZADD', priority.set_key(slug, group, is_batch), whole(service), tenant)
  if group == '' then
    add_weight(slug, is_batch, number(own['w|' .. slug], 0))
  else
    add_sums(group, slug, sums, 1)
    if not activate(group, slug, is_batch) and not is_batch then
      change_set(group, slug, false)
    end
  end
  local was_batch = redis.call('ZREM', k_active .. slug .. before, tenant) == 0
    and redis.call('ZREM', k_batch .. slug .. before, tenant) == 1
  if before == '' then
    add_weight(slug, was_batch, 0 - number(own['w|' .. slug], 0))
  else
    add_sums(before, slug, sums, -1)
    deactivate(before, slug)
  end
end
