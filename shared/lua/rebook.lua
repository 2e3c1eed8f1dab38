-- rebook: recomputes a pool's sums from the records of the tenants with queued jobs, and their scores in the active set.
-- KEYS active order books tenant
-- ARGV
--   slug text · the pool's model: its name in the form used in store keys
-- ANSWERS rebooked
--   rebooked: number of repairs
-- KEEPS 3 7
-- USES clock settings afford mark turns books stats

-- This script examines all tenants of the active set, because a sum over a part of them is useless. If there are more
-- than MAX_EXAMINED, it does nothing.
local MAX_EXAMINED = 1024
local repairs, waiting, waiting_mwt, weight_milli = 0, 0, 0, 0
local tenants = redis.call('ZRANGE', k_active .. slug, 0, MAX_EXAMINED, 'WITHSCORES')
if #tenants > 2 * MAX_EXAMINED then
  return { 'rebooked', 0 }
end
for i = 1, #tenants, 2 do
  local tenant = tenants[i]
  local jobs = redis.call('ZCARD', k_order .. tenant .. '.' .. slug)
  if jobs == 0 then
    deactivate(tenant, slug)
    repairs = repairs + 1
  else
    local own = redis.call('HMGET', k_tenant .. tenant, 'b|' .. slug, 'w|' .. slug, 's|' .. slug, 'n|' .. slug)
    waiting, waiting_mwt = waiting + jobs, waiting_mwt + number(own[1], 0)
    weight_milli = weight_milli + number(own[2], 0, 0)
    if number(own[4]) ~= jobs then
      redis.call('HSET', k_tenant .. tenant, 'n|' .. slug, jobs)
      repairs = repairs + 1
    end
    local service = number(own[3], nil, MIN_SERVICE_MWT)
    if service and number(tenants[i + 1]) ~= service then
      redis.call('ZADD', k_active .. slug, whole(service), tenant)
      repairs = repairs + 1
    end
  end
end
local sums = { waiting = waiting, waiting_mwt = waiting_mwt, weight_milli = weight_milli }
for name, value in pairs(sums) do
  if number(redis.call('HGET', k_books .. slug, name) or '0') ~= value then
    redis.call('HSET', k_books .. slug, name, whole(value))
    repairs = repairs + 1
  end
end
if repairs > 0 then
  count('reconciled', repairs)
end
return { 'rebooked', repairs }
