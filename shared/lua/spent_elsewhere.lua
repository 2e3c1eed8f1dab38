-- spent_elsewhere: stores what was used of budgets and of pools' caps in other cells.
-- KEYS tenant books spent
-- ARGV
--   entries rest · owner, name of the other cell, when it was read there in ms, what spent_here returned there, …
-- ANSWERS stored
--   stored: how many of these entries are new
-- KEEPS 9
-- USES clock oom_write usage budget spending

-- The most entries of an owner: a deployment has no more cells (shared/cells/directory.py).
local MAX_ENTRIES = 64

-- Whether an entry of a budget can still count: it is of the current month, or of jobs that may still be inflight. The
-- clock of another cell may already be in the next month.
local function may_count(read_ms, counts)
  return string.sub(counts, 1, 7) >= string.sub(usage.today(), 1, 7) or budget.may_be_reserved(read_ms)
end

-- Returns the entries in a field with `entry` in place of an older one of the same cell; nil if a newer one is stored.
local function with_entry(stored, pattern, entry, is_kept)
  local parts = { entry.cell .. ' ' .. entry.read_ms .. ' ' .. entry.counts }
  for name, at_ms, held in string.gmatch(stored or '', pattern) do
    if name ~= entry.cell then
      parts[#parts + 1] = #parts < MAX_ENTRIES and is_kept(at_ms, held) and name .. ' ' .. at_ms .. ' ' .. held or nil
    elseif held == entry.counts or number(at_ms, 0, 0) > number(entry.read_ms, 0, 0) then
      return nil
    end
  end
  table.sort(parts)
  return table.concat(parts, ';')
end

-- Stores an entry of a tenant or @group. Returns 1 if it is new, else 0. Without a policy there is no budget, and a
-- record that is written here would have no TTL.
local function tell_owner(owner, entry)
  local record = read_fields(k_tenant .. owner, { 'policy', 'budget_elsewhere' })
  local told = record.policy and may_count(entry.read_ms, entry.counts)
    and with_entry(record.budget_elsewhere, budget.ELSEWHERE_PATTERN, entry, may_count)
  if not told then
    return 0
  end
  redis.call('HSET', k_tenant .. owner, 'budget_elsewhere', told)
  return 1
end

-- Stores an entry of a pool, which counts for one day. Returns 1 if it is new, else 0.
local function tell_pool(slug, entry)
  local day, amount = string.match(entry.counts, '^(%d%d%d%d%-%d%d%-%d%d) (%d+)$')
  if not day or day < usage.today() or not redis.call('HGET', k_books .. slug, 'policy_day_cap_micro') then
    return 0
  end
  local key, field = k_spent .. day, spending.IN_CELLS .. slug
  local told = with_entry(redis.call('HGET', key, field), spending.IN_CELLS_PATTERN,
    { cell = entry.cell, read_ms = entry.read_ms, counts = amount }, function() return true end)
  if not told then
    return 0
  end
  redis.call('HSET', key, field, told)
  redis.call('EXPIRE', key, spending.SPENT_TTL_S)
  return 1
end

local changed = 0
for i = entries, #ARGV, 4 do
  local owner, entry = ARGV[i], { cell = ARGV[i + 1], read_ms = ARGV[i + 2], counts = ARGV[i + 3] }
  if string.sub(owner, 1, 1) == '$' then
    changed = changed + tell_pool(string.sub(owner, 2), entry)
  else
    changed = changed + tell_owner(owner, entry)
  end
end
return { 'stored', changed }
