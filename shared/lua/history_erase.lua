-- history_erase: makes one tenant's part of some points of the history a part of the rest; other counts stay.
-- KEYS history history_now history_busy
-- ARGV
--   tenant text · the tenant
--   limit_bytes int · the most memory that the history may take, in bytes
--   fields rest · the fields of the points, at most 64
-- ANSWERS erased
--   erased: the number of points that were changed
-- KEEPS 4
-- USES clock oom_write history history_rows

-- The counts that are not in a point yet.
local counts = redis.call('HGETALL', k_history_now)
for i = 1, #counts, 2 do
  local what, owner, pool = string.match(counts[i], '^([%w_.]+)|([^|%s]+)|(%S+)$')
  if owner == tenant then
    redis.call('HDEL', k_history_now, counts[i])
    redis.call('HINCRBY', k_history_now, what .. '|' .. history.OTHER_TENANTS .. '|' .. pool,
      whole(number(counts[i + 1], 0, 0, history_rows.MAX_STORED)))
  end
end
redis.call('ZREM', k_history_busy, tenant)
-- The tenants that the next calls for an unfinished point name.
local named, others = redis.call('HGET', k_history, 'open_named'), {}
if named then
  for name in string.gmatch(named, '%S+') do
    if name ~= tenant then
      others[#others + 1] = name
    end
  end
  redis.call('HSET', k_history, 'open_named', table.concat(others, ' '))
end

local changed = 0
for i = fields, #ARGV do
  local text = redis.call('HGET', k_history, ARGV[i])
  if text and string.find(text, '\nt ' .. tenant .. ' ', 1, true) then
    local row = history_rows.read_row(text)
    if row then
      history_rows.merge_entry(row.rest, row.tenants[tenant])
      row.tenants[tenant] = nil
      redis.call('HSET', k_history, ARGV[i], history_rows.row_text(row, history_rows.room_of_point(limit_bytes)))
    else
      -- Another program has spoiled the point.
      redis.call('HDEL', k_history, ARGV[i])
    end
    changed = changed + 1
  end
end
return { 'erased', changed }
