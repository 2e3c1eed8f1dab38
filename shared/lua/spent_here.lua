-- spent_here: returns what tenants and groups have used of their budgets in this cell, without what other cells tell.
-- KEYS tenants tenant
-- ARGV
--   since_ms int · tenants admitted since then are examined, and their groups, in ms; -1 for all tenants
--   offset int · how many of these tenants earlier calls have examined, the last admitted first
--   most int · the most tenants that this call examines
--   owners rest · tenants and @groups that are examined besides
-- ANSWERS used
--   used: now in ms; how many tenants were examined that `owners` does not name; a list that has, for each examined
--   owner with a budget that has used some of it, its name and its field `budget`
-- USES clock

local used, examined = {}, {}
-- Adds what an owner has used, and returns its group, or false.
local function examine(owner)
  examined[owner] = true
  local fields = peek_fields(k_tenant .. owner, { 'budget', 'policy_tokens_per_day', 'policy_tokens_per_month',
    'policy_group' })
  local counts = fields.budget or ''
  if (fields.policy_tokens_per_day or fields.policy_tokens_per_month) and #counts < 80
    and string.find(counts, '^%d%d%d%d%-%d%d%-%d%d %d+ %d+ %d+$') then
    used[#used + 1] = owner
    used[#used + 1] = counts
  end
  return fields.policy_group
end

for i = owners, #ARGV do
  examine(ARGV[i])
end
local tenants = redis.call('ZREVRANGEBYSCORE', k_tenants, '+inf', since_ms < 0 and '-inf' or since_ms, 'LIMIT', offset,
  most)
for _, tenant in ipairs(tenants) do
  local group = examine(tenant)
  if group and not examined['@' .. group] then
    examine('@' .. group)
  end
end
return { 'used', now_ms, #tenants, used }
