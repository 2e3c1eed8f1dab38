-- rebook: recomputes the sums of a pool or of a group in it from the records of their owners, and the owners' scores.
-- KEYS order books tenant lists
-- ARGV
--   slug text · the pool's model: its name in the form used in store keys
--   group text · `@<group>` for the set of the group's tenants, '' for the pool's set of groups and tenants
-- ANSWERS rebooked
--   rebooked: number of repairs
-- KEEPS 3 7
-- USES clock oom_write mark repair turns service priority pool_record stats

-- This script examines all owners of the set, because a sum over a part of them is useless. If there are more than
-- MAX_EXAMINED, it does nothing. A group's part of the pool's sums is taken from the group's record, which another call
-- recomputes.
local MAX_EXAMINED = 1024
local is_batch = { [priority.set_key(slug, group, false)] = false, [priority.set_key(slug, group,
  true)] = true }
local members_of = {}
for set in pairs(is_batch) do
  members_of[set] = redis.call('ZRANGE', set, 0, MAX_EXAMINED, 'WITHSCORES')
  if #members_of[set] > 2 * MAX_EXAMINED then
    return { 'rebooked', 0 }
  end
end

-- Makes an owner's score agree with its service, its number of queued jobs with its queue, and a group's weight with
-- its policy. Adds the owner's contribution to the sums. `fields` are those of its record.
local sums = { jobs = 0, tokens = 0, mwt = 0, batch_jobs = 0, batch_mwt = 0, [false] = 0, [true] = 0 }
local function rebook_owner(owner, set, score, fields)
  local key, jobs = k_tenant .. owner, number(fields['n|' .. slug], 0, 0)
  local service, weight_milli = number(fields['s|' .. slug], nil, service.MIN_SERVICE_MWT), number(fields['w|'
    .. slug], 0, 0)
  if service and score ~= service then
    repair.correct_score(set, service, owner)
  end
  if service.is_group(owner) then
    weight_milli = pool_record.weight_in(fields.policy_weight_milli)
    repair.correct_fields(key, { ['w|' .. slug] = weight_milli })
  else
    jobs = redis.call('ZCARD', k_order .. owner .. '.' .. slug)
    repair.correct_fields(key, { ['n|' .. slug] = jobs })
  end
  sums.jobs, sums.tokens, sums.mwt = sums.jobs + jobs, sums.tokens + number(fields['t|' .. slug], 0, 0),
    sums.mwt + number(fields['b|' .. slug], 0, 0)
  sums.batch_jobs = sums.batch_jobs + number(fields['bn|' .. slug], 0, 0)
  sums.batch_mwt = sums.batch_mwt + number(fields['bb|' .. slug], 0, 0)
  sums[is_batch[set]] = sums[is_batch[set]] + weight_milli
end

local function examine(owner, set, score)
  local fields = read_fields(k_tenant .. owner, { 'g|' .. slug, 'n|' .. slug, 't|' .. slug, 'b|' .. slug, 's|' .. slug,
    'w|' .. slug, 'policy_weight_milli', 'bn|' .. slug, 'bb|' .. slug })
  local right_group = service.is_group(owner) and '' or service.group_in(fields['g|' .. slug])
  local only_batch = priority.has_only_batch(owner, slug)
  if right_group ~= group then
    redis.call('ZREM', set, owner)
    redis.call('ZADD', priority.set_key(slug, right_group, is_batch[set]), 'NX', score or 0, owner)
  elseif only_batch == nil then
    turns.deactivate(owner, slug)
  elseif only_batch ~= is_batch[set] then
    turns.change_set(owner, slug, only_batch)
  end
  repair.note_repairs((right_group ~= group or only_batch ~= is_batch[set]) and 1 or 0)
  if right_group == group and only_batch ~= nil then
    rebook_owner(owner, priority.set_key(slug, group, only_batch), score, fields)
  end
end

for set, members in pairs(members_of) do
  for i = 1, #members, 2 do
    examine(members[i], set, number(members[i + 1]))
  end
end

if group == '' then
  repair.correct_fields(k_books .. slug, { waiting = sums.jobs, waiting_mwt = sums.mwt, batch_mwt = sums.batch_mwt,
    weight_milli = sums[false], batch_weight_milli = sums[true] })
elseif sums.jobs > 0 then
  local key, all = k_tenant .. group, { waiting = 0, waiting_tokens = 0, waiting_mwt = 0 }
  repair.correct_fields(key, { ['n|' .. slug] = sums.jobs, ['t|' .. slug] = sums.tokens, ['b|' .. slug] = sums.mwt,
    ['bn|' .. slug] = sums.batch_jobs, ['bb|' .. slug] = sums.batch_mwt })
  for _, pool in ipairs(redis.call('SMEMBERS', k_lists .. group)) do
    local own = read_fields(key, { 'n|' .. pool, 't|' .. pool, 'b|' .. pool })
    all.waiting, all.waiting_tokens = all.waiting + number(own['n|' .. pool], 0), all.waiting_tokens + number(own['t|'
      .. pool], 0)
    all.waiting_mwt = all.waiting_mwt + number(own['b|' .. pool], 0)
  end
  repair.correct_fields(key, all)
end
if repair.repairs.made > 0 then
  stats.count('reconciled', repair.repairs.made)
end
return { 'rebooked', repair.repairs.made }
