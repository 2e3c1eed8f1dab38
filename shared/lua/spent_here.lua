-- spent_here: returns what was used of budgets and caps in this cell, without what other cells tell, a part at a time.
-- KEYS tenants tenant books spent
-- ARGV
--   since_ms int · tenants admitted since then are examined, and their groups, in ms; -1 for all tenants
--   offset int · how many of these tenants earlier calls have examined, the last admitted first
--   most int · the most tenants that this call examines
--   owners rest · tenants, @groups and $slugs of pools that are examined besides
-- ANSWERS used
--   used: now in ms; how many tenants were examined that `owners` does not name; a list that has, for each examined
--   owner that has used some of a budget, its name and its field `budget`; of a pool with a cap, the day and amount
-- KEEPS 9
-- USES clock usage spending

local used, examined = {}, {}
local function add(owner, counts)
  used[#used + 1] = owner
  used[#used + 1] = counts
end

local function examine_pool(slug)
  local today = usage.today()
  local amount = number(peek_fields(k_spent .. today, { slug })[slug], nil, 0, spending.MAX_AMOUNT)
  if amount and peek_fields(k_books .. slug, { 'policy_day_cap_micro' }).policy_day_cap_micro then
    add('$' .. slug, today .. ' ' .. digits(amount))
  end
end

-- Adds what a tenant or @group has used, and returns its group, or false.
local function examine(owner)
  examined[owner] = true
  local fields = peek_fields(k_tenant .. owner, { 'budget', 'policy_tokens_per_day', 'policy_tokens_per_month',
    'policy_group' })
  local counts = fields.budget or ''
  if (fields.policy_tokens_per_day or fields.policy_tokens_per_month) and #counts < 80
    and string.find(counts, '^%d%d%d%d%-%d%d%-%d%d %d+ %d+ %d+$') then
    add(owner, counts)
  end
  return fields.policy_group
end

for i = owners, #ARGV do
  if string.sub(ARGV[i], 1, 1) == '$' then
    examine_pool(string.sub(ARGV[i], 2))
  else
    examine(ARGV[i])
  end
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
