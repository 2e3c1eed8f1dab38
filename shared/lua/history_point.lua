-- history_point: moves the counts since the last point into the points of the history, if a point is due.
-- KEYS history history_now history_busy deadlines leases tenant books models
-- ARGV
--   limit_bytes int · the most memory that the history may take, in bytes
-- ANSWERS point
--   point: ms until the next call is due, 0 if counts are left; 1 if this call wrote points; how many counts it moved
-- KEEPS 4
-- USES clock oom_write mark slug history history_rows

-- A call moves about this many counts, so that it does not hold up the other scripts for long.
local MOVED_TOGETHER = 2048
-- After this time what a tenant did is half as important for whether it counts as busy.
local HALF_LIFE_MS = 1800000
-- The most tenants that are compared by how busy they were.
local MAX_BUSY = 4096
-- The most pools whose waiting and running jobs are counted.
local MAX_POOLS = 64

local slot, held = math.floor(now_ms / history_rows.SHORTEST_MS), peek_fields(k_history,
  { 'last_ms', 'open_slot', 'open_named' })
local last_ms, is_first = number(held.last_ms, 0, 0), number(held.open_slot, 0) ~= slot
local last_slot, due_in_ms = math.floor(last_ms / history_rows.SHORTEST_MS), (slot + 1) * history_rows.SHORTEST_MS
  - now_ms
if last_slot == slot then
  return { 'point', due_in_ms, 0, 0 }
end
-- A time in the future was not written by this script.
if last_ms == 0 or last_slot > slot then
  last_slot, last_ms = slot - 1, (slot - 1) * history_rows.SHORTEST_MS
end
-- Most counts since the last point belong to the slot before this one.
local row = { start = (slot - 1) * history_rows.SHORTEST_MS, from = last_ms, to = now_ms, samples = is_first and 1 or 0,
  tenants = {}, pools = {}, rest = {} }

local function add_to(entries, name, what, by)
  if not entries[name] then
    entries[name] = {}
  end
  history_rows.add_count(entries[name], what, by)
end

-- Takes some counts out of the store. Returns lists of their kinds, tenants, pools and numbers.
local function take_counts()
  local cursor, kinds, tenants, pools, numbers, taken, fields = '0', {}, {}, {}, {}, {}, {}
  -- A large table whose first part is empty already has no field for the first calls of a scan.
  repeat
    local answer = redis.call('HSCAN', k_history_now, cursor, 'COUNT', MOVED_TOGETHER)
    local page = answer[2]
    cursor = answer[1]
    for i = 1, #page, 2 do
      -- A scan may return a field twice.
      if page[i] ~= history.BYTES and not taken[page[i]] then
        taken[page[i]] = true
        fields[#fields + 1] = page[i]
        local what, tenant, pool = string.match(page[i], '^([%w_.]+)|([^|%s]+)|(%S+)$')
        local by = number(page[i + 1], 0, 0, history_rows.MAX_STORED)
        if what and by > 0 then
          local n = #kinds + 1
          kinds[n], tenants[n], pools[n], numbers[n] = what, tenant, pool, by
        end
      end
    end
  until fields[1] or cursor == '0'
  for i = 1, #fields, 100 do
    redis.call('HDEL', k_history_now, unpack(fields, i, math.min(i + 99, #fields)))
  end
  return { kinds = kinds, tenants = tenants, pools = pools, numbers = numbers }
end

-- Counts the tenants' activity, and returns the names of the busiest of the last hours, busiest first.
local function rank_tenants(counts)
  if is_first then
    local factor = 0.5 ^ (math.min(slot - last_slot, 1000) * history_rows.SHORTEST_MS / HALF_LIFE_MS)
    redis.call('ZUNIONSTORE', k_history_busy, 1, k_history_busy, 'WEIGHTS', string.format('%.17g', factor))
    redis.call('ZREMRANGEBYSCORE', k_history_busy, '-inf', '(1')
  end
  local activity = {}
  for i, name in ipairs(counts.tenants) do
    activity[name] = (activity[name] or 0) + history_rows.weight_of(counts.kinds[i]) * counts.numbers[i]
  end
  activity[history.OTHER_TENANTS] = nil
  for name, by in pairs(activity) do
    redis.call('ZINCRBY', k_history_busy, whole(by), name)
  end
  redis.call('ZREMRANGEBYRANK', k_history_busy, 0, -MAX_BUSY - 1)
  redis.call('EXPIRE', k_history_busy, history_rows.KEPT_S)
  if not is_first then
    -- All calls for a point name the same tenants.
    local same = {}
    for name in string.gmatch(held.open_named or '', '%S+') do
      same[#same + 1] = name
    end
    return same
  end
  return redis.call('ZREVRANGE', k_history_busy, 0, history_rows.MAX_NAMED - 1)
end

-- Adds the jobs that wait, run and are paused, from the hash of a tenant or of a pool. Returns the first two numbers,
-- the second with paused jobs.
local function add_jobs(entries, name, fields)
  local waiting, running = number(fields.waiting, 0, 0), number(fields.running, 0, 0)
  local paused = math.min(running, number(fields.paused, 0, 0))
  for what, by in pairs({ waiting = waiting, running = running - paused, paused = paused, most_waiting = waiting }) do
    if by > 0 then
      add_to(entries, name, what, by)
    end
  end
  return waiting, running
end

local function add_all_jobs(named)
  local others_waiting, others_running = redis.call('ZCARD', k_deadlines), redis.call('ZCARD', k_leases)
  for _, name in ipairs(named) do
    local waiting, running = add_jobs(row.tenants, name, read_fields(k_tenant .. name,
      { 'waiting', 'running', 'paused' }))
    others_waiting, others_running = others_waiting - waiting, others_running - running
  end
  row.rest.waiting, row.rest.running = math.max(0, others_waiting), math.max(0, others_running)
  row.rest.most_waiting = row.rest.waiting
  for _, model in ipairs(redis.call('ZREVRANGE', k_models, 0, MAX_POOLS - 1)) do
    local pool = slug.slug_of(model)
    add_jobs(row.pools, pool, read_fields(k_books .. pool, { 'waiting', 'running', 'paused' }))
  end
end

local counts = take_counts()
local named, is_named = rank_tenants(counts), {}
for _, name in ipairs(named) do
  is_named[name] = true
end
for i, what in ipairs(counts.kinds) do
  local name, by = counts.tenants[i], counts.numbers[i]
  if is_named[name] then
    add_to(row.tenants, name, what, by)
  else
    history_rows.add_count(row.rest, what, by)
  end
  add_to(row.pools, counts.pools[i], what, by)
end
if is_first then
  add_all_jobs(named)
end
history_rows.add_row(row, limit_bytes)
local is_done = redis.call('HLEN', k_history_now) <= 1
if is_done then
  redis.call('DEL', k_history_now)
  redis.call('HSET', k_history, 'last_ms', digits(now_ms))
  redis.call('HDEL', k_history, 'open_slot', 'open_named')
elseif is_first then
  redis.call('HSET', k_history, 'open_slot', slot, 'open_named', table.concat(named, ' '))
end
redis.call('EXPIRE', k_history, history_rows.KEPT_S)
return { 'point', is_done and due_in_ms or 0, 1, #counts.kinds }
