-- rebook: recomputes a pool's sums from the records of the tenants with queued jobs, and their scores in the active set.
-- KEYS active order books tenant lists
-- ARGV
--   slug text · the pool's model: its name in the form used in store keys
-- ANSWERS rebooked
--   rebooked: number of repairs
-- KEEPS 3 7
-- USES clock settings afford mark turns books stats

-- This script examines all tenants of the active set and of the groups in it, because a sum over a part of them is
-- useless. If there are more than MAX_EXAMINED, it does nothing.
local MAX_EXAMINED = 1024
local repairs = 0

-- Makes number fields of a record agree with what was computed.
local function correct(key, fields)
  for name, value in pairs(fields) do
    if number(redis.call('HGET', key, name) or '0') ~= value then
      redis.call('HSET', key, name, whole(value))
      repairs = repairs + 1
    end
  end
end

-- Returns the owners of a set, with their scores. An owner that belongs to another set is moved there.
local function owners_of(group)
  local owners, members = {}, redis.call('ZRANGE', k_active .. slug .. group, 0, MAX_EXAMINED, 'WITHSCORES')
  for i = 1, #members, 2 do
    local right_group = redis.call('HGET', k_tenant .. members[i], 'g|' .. slug) or ''
    if right_group == group then
      owners[#owners + 1] = { name = members[i], score = number(members[i + 1]) }
    else
      redis.call('ZREM', k_active .. slug .. group, members[i])
      redis.call('ZADD', k_active .. slug .. right_group, 'NX', members[i + 1], members[i])
      repairs = repairs + 1
    end
  end
  return owners
end

-- Makes a group's weight and its sums over all pools agree with its policy and its sums in each pool.
local function rebook_group(group)
  local key = k_tenant .. group
  local sums = { waiting = 0, waiting_tokens = 0, waiting_mwt = 0 }
  for _, pool in ipairs(redis.call('SMEMBERS', k_lists .. group)) do
    local own = redis.call('HMGET', key, 'n|' .. pool, 't|' .. pool, 'b|' .. pool)
    sums.waiting, sums.waiting_tokens = sums.waiting + number(own[1], 0), sums.waiting_tokens + number(own[2], 0)
    sums.waiting_mwt = sums.waiting_mwt + number(own[3], 0)
  end
  correct(key, sums)
  correct(key, { ['w|' .. slug] = weight_in(redis.call('HGET', key, 'policy_weight_milli')) })
end

-- Makes an owner's score agree with its service, and its record with its queued jobs. Returns the weight that
-- is counted for it.
local function rebook_owner(owner, jobs, tokens, mwt)
  local key = k_tenant .. owner.name
  local service = number(redis.call('HGET', key, 's|' .. slug), nil, MIN_SERVICE_MWT)
  if service and owner.score ~= service then
    redis.call('ZADD', k_active .. slug .. owner.group, whole(service), owner.name)
    repairs = repairs + 1
  end
  correct(key, { ['n|' .. slug] = jobs, ['t|' .. slug] = tokens, ['b|' .. slug] = mwt })
  if is_group(owner.name) then
    rebook_group(owner.name)
  end
  return number(redis.call('HGET', key, 'w|' .. slug), 0, 0)
end

-- Rebooks the owners of a set. Returns the sums over them: numbers of jobs and of tokens, costs, and weights.
local function rebook_set(group)
  local jobs_in_set, tokens_in_set, mwt_in_set, weight_milli = 0, 0, 0, 0
  for _, owner in ipairs(owners_of(group)) do
    owner.group = group
    local jobs, tokens, mwt
    if is_group(owner.name) then
      jobs, tokens, mwt = rebook_set(owner.name)
    else
      local own = redis.call('HMGET', k_tenant .. owner.name, 't|' .. slug, 'b|' .. slug)
      jobs = redis.call('ZCARD', k_order .. owner.name .. '.' .. slug)
      tokens, mwt = number(own[1], 0), number(own[2], 0)
    end
    if jobs == 0 then
      deactivate(owner.name, slug)
      repairs = repairs + 1
    else
      weight_milli = weight_milli + rebook_owner(owner, jobs, tokens, mwt)
      jobs_in_set, tokens_in_set, mwt_in_set = jobs_in_set + jobs, tokens_in_set + tokens, mwt_in_set + mwt
    end
  end
  return jobs_in_set, tokens_in_set, mwt_in_set, weight_milli
end

-- How many owners are in the pool's set and in the sets of its groups.
local function size()
  local owners, total = redis.call('ZRANGE', k_active .. slug, 0, MAX_EXAMINED), 0
  for i = 1, #owners do
    total = total + 1 + (is_group(owners[i]) and redis.call('ZCARD', k_active .. slug .. owners[i]) or 0)
  end
  return total
end

if size() > MAX_EXAMINED then
  return { 'rebooked', 0 }
end
local waiting, _, waiting_mwt, weight_milli = rebook_set('')
correct(k_books .. slug, { waiting = waiting, waiting_mwt = waiting_mwt, weight_milli = weight_milli })
if repairs > 0 then
  count('reconciled', repairs)
end
return { 'rebooked', repairs }
