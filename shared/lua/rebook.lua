-- rebook: recomputes the sums of a pool or of a group in it from the records of their owners, and the owners' scores.
-- KEYS active order books tenant lists
-- ARGV
--   slug text · the pool's model: its name in the form used in store keys
--   group text · `@<group>` for the set of the group's tenants, '' for the pool's set of groups and tenants
-- ANSWERS rebooked
--   rebooked: number of repairs
-- KEEPS 3 7
-- USES clock settings afford mark turns books stats rows

-- This script examines all owners of the set, because a sum over a part of them is useless. If there are more than
-- MAX_EXAMINED, it does nothing. A group's part of the pool's sums is taken from the group's record, which another call
-- recomputes.
local MAX_EXAMINED = 1024
local set, repairs = k_active .. slug .. group, 0
local members = redis.call('ZRANGE', set, 0, MAX_EXAMINED, 'WITHSCORES')
if #members > 2 * MAX_EXAMINED then
  return { 'rebooked', 0 }
end

-- Makes number fields of a record agree with what was computed.
local function correct(key, fields)
  for name, value in pairs(fields) do
    if number(redis.call('HGET', key, name) or '0') ~= value then
      redis.call('HSET', key, name, whole(value))
      repairs = repairs + 1
    end
  end
end

-- Makes an owner's score agree with its service, its number of queued jobs with its queue, and a group's weight with its
-- policy. Returns what it adds to the sums: jobs, tokens, their cost and its weight. `fields` are those of its record.
local function rebook_owner(owner, score, fields)
  local key, jobs = k_tenant .. owner, number(fields[2], 0, 0)
  local service, weight_milli = number(fields[5], nil, MIN_SERVICE_MWT), number(fields[6], 0, 0)
  if service and score ~= service then
    redis.call('ZADD', set, whole(service), owner)
    repairs = repairs + 1
  end
  if is_group(owner) then
    weight_milli = weight_in(fields[7])
    correct(key, { ['w|' .. slug] = weight_milli })
  else
    jobs = redis.call('ZCARD', k_order .. owner .. '.' .. slug)
    correct(key, { ['n|' .. slug] = jobs })
  end
  return jobs, number(fields[3], 0, 0), number(fields[4], 0, 0), weight_milli
end

local sums = { jobs = 0, tokens = 0, mwt = 0, weight_milli = 0 }
for i = 1, #members, 2 do
  local owner = members[i]
  local fields = redis.call('HMGET', k_tenant .. owner, 'g|' .. slug, 'n|' .. slug, 't|' .. slug, 'b|' .. slug,
    's|' .. slug, 'w|' .. slug, 'policy_weight_milli')
  local right_group = is_group(owner) and '' or group_in(fields[1])
  if right_group ~= group then
    redis.call('ZREM', set, owner)
    redis.call('ZADD', k_active .. slug .. right_group, 'NX', members[i + 1], owner)
    repairs = repairs + 1
  elseif not wants_slots(owner, slug) then
    deactivate(owner, slug)
    repairs = repairs + 1
  else
    local jobs, tokens, mwt, weight_milli = rebook_owner(owner, number(members[i + 1]), fields)
    sums.jobs, sums.tokens, sums.mwt = sums.jobs + jobs, sums.tokens + tokens, sums.mwt + mwt
    sums.weight_milli = sums.weight_milli + weight_milli
  end
end

if group == '' then
  correct(k_books .. slug, { waiting = sums.jobs, waiting_mwt = sums.mwt, weight_milli = sums.weight_milli })
elseif sums.jobs > 0 then
  local key, all = k_tenant .. group, { waiting = 0, waiting_tokens = 0, waiting_mwt = 0 }
  correct(key, { ['n|' .. slug] = sums.jobs, ['t|' .. slug] = sums.tokens, ['b|' .. slug] = sums.mwt })
  for _, pool in ipairs(redis.call('SMEMBERS', k_lists .. group)) do
    local own = redis.call('HMGET', key, 'n|' .. pool, 't|' .. pool, 'b|' .. pool)
    all.waiting, all.waiting_tokens = all.waiting + number(own[1], 0), all.waiting_tokens + number(own[2], 0)
    all.waiting_mwt = all.waiting_mwt + number(own[3], 0)
  end
  correct(key, all)
end
if repairs > 0 then
  count('reconciled', repairs)
end
return { 'rebooked', repairs }
