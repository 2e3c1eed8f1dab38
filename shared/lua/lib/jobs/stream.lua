-- stream: adds an entry to a job's stream; if the key holds another type, the stream replaces it.
-- KEYS
-- XADD fails if another program has stored a value of another type under the stream's key. The key is then deleted and
-- XADD is repeated, because an error after a script's first write would leave the job between two states.
local function add_entry(key, ...)
  local added = redis.pcall('XADD', key, ...)
  if type(added) == 'table' and added.err then
    redis.call('DEL', key)
    redis.call('XADD', key, ...)
  end
end

-- Returns the id of one of the entries that XREVRANGE returned and the value of its first field, which is its type.
local function type_of_entry(entries, index)
  local entry = entries[index]
  if type(entry) == 'table' then
    return entry[1], entry[2][2]
  end
end

-- Adds that the job is queued again. A job can go back any number of times, so the entry of a claim that added no text
-- is removed, with that of the requeue before it: followers see the same without them. An earlier entry must stay,
-- because it shows that the stream was not deleted (lib/jobs/partial.lua).
local function add_requeued(key)
  local newest = redis.pcall('XREVRANGE', key, '+', '-', 'COUNT', 3)
  local started, started_type = type_of_entry(newest, 1)
  local requeued, requeued_type = type_of_entry(newest, 2)
  if started_type == 'started' and requeued_type == 'requeued' and newest[3] then
    redis.call('XDEL', key, started, requeued)
  end
  add_entry(key, '*', 'type', 'requeued')
end

-- Removes the entries before the newest one: the text in them belongs to attempts that ended, and the job starts anew.
local function drop_earlier_attempts(key)
  local newest, newest_type = type_of_entry(redis.pcall('XREVRANGE', key, '+', '-', 'COUNT', 1), 1)
  if newest_type == 'requeued' then
    redis.call('XTRIM', key, 'MINID', newest)
  end
end
