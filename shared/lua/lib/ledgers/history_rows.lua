-- history_rows: the text of a point of the history, and the place of each point.
-- KEYS history
-- USES clock history
-- The hash of the history is three rings. The field `<length>:<place>` holds the point whose start, divided by its
-- length, has the remainder `place` of the number of points, so that a new point replaces one that is too old.
-- A point is text of lines. The first line is `<start> <from> <to> <samples>`, in ms, and in how many samples waiting
-- and running jobs were counted. Each further line is `<kind> <name> <numbers>`, where the kind is t for a tenant, p
-- for a pool, and r, with the name `-`, for all other tenants. The numbers are POINT_AMOUNTS, separated by spaces; then
-- follow, each after a `;`, `<bucket>:<jobs>` for each bucket of times to the first token (lib/ledgers/history.lua)
-- and `<reason>:<requests>` for each reason of refusals. shared/history/points.py reads the same.

-- The jobs that waited, ran and were paused are sums over the samples. `most_waiting` is the largest of them.
local POINT_AMOUNTS = { 'admitted', 'succeeded', 'failed', 'canceled', 'expired', 'prompt', 'cached', 'completion',
  'cost_micro', 'pauses', 'waiting', 'running', 'paused', 'most_waiting' }
local SHORTEST_MS = 10000
-- The lengths of points in ms, and how many are kept: an hour, a day and 30 days.
local RINGS = { { SHORTEST_MS, 360 }, { 300000, 288 }, { 3600000, 720 } }
local POINTS = 1368
local KEPT_S = 31 * 86400
-- The most tenants and pools that a point names.
local MAX_NAMED = 50
-- The memory for the counts that are not in a point yet (lib/ledgers/history.lua) and for the ranking of tenants, in
-- bytes; the part of the other memory for the text of points, because the store rounds sizes up by up to a quarter; and
-- the part of a point for its pools.
local RESERVED_BYTES, TEXT_PART, POOLS_PART = 3145728, 0.79, 0.3
-- The largest number that is believed.
local MAX_STORED = 1e15

local function add_count(entry, what, by)
  if what == 'most_waiting' then
    entry[what] = math.max(entry[what] or 0, by)
  else
    entry[what] = (entry[what] or 0) + by
  end
end

local function merge_entry(entry, other)
  for what, by in pairs(other) do
    add_count(entry, what, by)
  end
end

-- Tenants are compared by their tokens, and as many for each of their requests.
local TOKENS_A_REQUEST = 100
local WEIGHTS = { prompt = 1, completion = 1, admitted = TOKENS_A_REQUEST }
local function weight_of(what)
  return WEIGHTS[what] or string.sub(what, 1, 8) == 'refused.' and TOKENS_A_REQUEST or 0
end

local function activity_of(entry)
  local activity = 0
  for what, by in pairs(entry) do
    activity = activity + weight_of(what) * by
  end
  return activity
end

local function add_listed(entry, kind, listed)
  for name, by in string.gmatch(listed, '([%w_]+):(%d+)') do
    add_count(entry, kind .. name, number(by, 0, 0, MAX_STORED))
  end
end

local function parse_entry(numbers)
  local entry, i = {}, 0
  local amounts, first, refused = string.match(numbers, '^([%d ]*);([^;]*);([^;]*)$')
  for word in string.gmatch(amounts or '', '%d+') do
    i = i + 1
    if POINT_AMOUNTS[i] and word ~= '0' then
      entry[POINT_AMOUNTS[i]] = number(word, 0, 0, MAX_STORED)
    end
  end
  add_listed(entry, 'first.', first or '')
  add_listed(entry, 'refused.', refused or '')
  return entry
end

local function entry_text(entry)
  local numbers, first, refused = {}, {}, {}
  for i = 1, #POINT_AMOUNTS do
    numbers[i] = digits(entry[POINT_AMOUNTS[i]] or 0)
  end
  for what, by in pairs(entry) do
    local kind, name = string.match(what, '^(%l+)%.([%w_]+)$')
    if kind then
      local listed = kind == 'first' and first or refused
      listed[#listed + 1] = name .. ':' .. digits(by)
    end
  end
  table.sort(first)
  table.sort(refused)
  return table.concat(numbers, ' ') .. ';' .. table.concat(first, ' ') .. ';' .. table.concat(refused, ' ')
end

-- A row is a point as a table: its times start, from and to in ms; samples; tenants and pools, which are entries by
-- name; and rest, the entry of all other tenants. Returns nil for any other text.
local function read_row(text)
  local start, from, to, samples = string.match(text or '', '^(%d+) (%d+) (%d+) (%d+)\n')
  start, from, to = number(start, nil, 0, MAX_STORED), number(from, nil, 0, MAX_STORED), number(to, nil, 0, MAX_STORED)
  samples = number(samples, nil, 1, 1000)
  if start and from and to and samples then
    local row = { start = start, from = from, to = to, samples = samples, tenants = {}, pools = {}, rest = {} }
    for kind, name, numbers in string.gmatch(text, '\n(%l) (%S+) ([^\n]*)') do
      if kind == 'r' then
        row.rest = parse_entry(numbers)
      elseif kind == 't' or kind == 'p' then
        (kind == 't' and row.tenants or row.pools)[name] = parse_entry(numbers)
      end
    end
    return row
  end
end

-- Appends the lines of the most active entries to `lines` until they take `room` bytes. Adds the others to `rest`.
-- Returns the bytes.
local function add_lines(lines, kind, entries, room, rest)
  local names, activity, taken, named = {}, {}, 0, 0
  for name, entry in pairs(entries) do
    names[#names + 1], activity[name] = name, activity_of(entry)
  end
  table.sort(names, function(a, b)
    return activity[a] > activity[b] or activity[a] == activity[b] and a < b
  end)
  for _, name in ipairs(names) do
    local line = kind .. ' ' .. name .. ' ' .. entry_text(entries[name]) .. '\n'
    if named < MAX_NAMED and taken + #line <= room and name ~= history.OTHER_TENANTS then
      lines[#lines + 1], taken, named = line, taken + #line, named + 1
    else
      merge_entry(rest, entries[name])
    end
  end
  return taken
end

local function row_text(row, room)
  local lines, rest, all = {}, {}, {}
  local header = table.concat({ digits(row.start), digits(row.from), digits(row.to), digits(row.samples) }, ' ') .. '\n'
  merge_entry(rest, row.rest)
  -- The line of the rest is at most as long as if it were the sum of all tenants.
  merge_entry(all, row.rest)
  for _, entry in pairs(row.tenants) do
    merge_entry(all, entry)
  end
  -- The counts of pools are those of the tenants, so the rest of pools needs no line.
  local taken = add_lines(lines, 'p', row.pools, math.floor(POOLS_PART * room), {})
  add_lines(lines, 't', row.tenants, room - taken - #header - #entry_text(all) - 5, rest)
  return header .. table.concat(lines) .. 'r - ' .. entry_text(rest) .. '\n'
end

local function room_of_point(limit_bytes)
  return math.max(1200, math.floor(TEXT_PART * (limit_bytes - RESERVED_BYTES) / POINTS))
end

-- Adds a row of the shortest length to the points in which it lies.
local function add_row(row, limit_bytes)
  for _, ring in ipairs(RINGS) do
    local length, points = ring[1], ring[2]
    local start = row.start - row.start % length
    local field = digits(length / 1000) .. ':' .. digits(start / length % points)
    local point = read_row(redis.call('HGET', k_history, field))
    if not point or point.start ~= start then
      point = { start = start, from = row.from, to = row.to, samples = 0, tenants = {}, pools = {}, rest = {} }
    end
    point.to, point.samples = row.to, point.samples + row.samples
    for _, kind in ipairs({ 'tenants', 'pools' }) do
      for name, entry in pairs(row[kind]) do
        point[kind][name] = point[kind][name] or {}
        merge_entry(point[kind][name], entry)
      end
    end
    merge_entry(point.rest, row.rest)
    redis.call('HSET', k_history, field, row_text(point, room_of_point(limit_bytes)))
  end
end
