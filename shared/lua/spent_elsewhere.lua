-- spent_elsewhere: stores what tenants and groups have used of their budgets in other cells.
-- KEYS tenant
-- ARGV
--   entries rest · owner, name of the other cell, when it was read there in ms, the owner's field `budget` there, …
-- ANSWERS stored
--   stored: how many owners have a new value
-- USES clock oom_write usage budget

-- The most entries of an owner: a deployment has no more cells (shared/cells/directory.py).
local MAX_ENTRIES = 64

-- Whether an entry can still count: it is of the current month, or of jobs that may still be inflight. The clock of
-- another cell may already be in the next month.
local function may_count(read_ms, counts)
  return string.sub(counts, 1, 7) >= string.sub(usage.today(), 1, 7) or budget.may_be_reserved(read_ms)
end

-- Returns the owner's entries with this one in place of an older one of the same cell; nil if a newer one is stored.
local function with_entry(stored, cell, read_ms, counts)
  local parts = { cell .. ' ' .. read_ms .. ' ' .. counts }
  for name, at_ms, held in string.gmatch(stored, budget.ELSEWHERE_PATTERN) do
    if name ~= cell then
      parts[#parts + 1] = #parts < MAX_ENTRIES and may_count(at_ms, held) and name .. ' ' .. at_ms .. ' ' .. held or nil
    elseif held == counts or number(at_ms, 0, 0) > number(read_ms, 0, 0) then
      return nil
    end
  end
  table.sort(parts)
  return table.concat(parts, ';')
end

local changed = 0
for i = entries, #ARGV, 4 do
  local owner, cell, read_ms, counts = ARGV[i], ARGV[i + 1], ARGV[i + 2], ARGV[i + 3]
  local record = read_fields(k_tenant .. owner, { 'policy', 'budget_elsewhere' })
  -- Without a policy there is no budget, and a record that is written here would have no TTL.
  local told = record.policy and may_count(read_ms, counts) and with_entry(record.budget_elsewhere or '', cell, read_ms,
    counts)
  if told then
    redis.call('HSET', k_tenant .. owner, 'budget_elsewhere', told)
    changed = changed + 1
  end
end
return { 'stored', changed }
