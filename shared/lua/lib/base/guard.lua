-- guard: the `redis.call` of all scripts, which mends values that another program spoiled instead of raising an error.
-- KEYS mended notices spoiled stats
-- The loader puts this file before every script. A value of the wrong type under one of our keys is renamed to
-- `penstock:spoiled:<key>`, and a hash field that must be a number and is not is deleted. The command is then
-- repeated. One spoiled key therefore costs only its contents, and never stops a script that serves everybody. The
-- duties (sweep, reconcile, recount) rebuild lost contents from the jobs' records.
local raw_call, raw_pcall, raw_sha1hex = redis.call, redis.pcall, redis.sha1hex
-- How long a renamed value is kept, and how long a repeated mend of the same key is not announced again.
local SPOILED_TTL_S, QUIET_S = 7 * 86400, 3600
-- The most mends that wait to be logged.
local MAX_NOTICES = 64

-- Counts a mend, and announces it to the process that sweeps next. `what` is a key, or a key and a field.
local function note_mend(kind, what)
  raw_pcall('HINCRBY', k_stats, 'mended|' .. kind, 1)
  local is_new = raw_pcall('SET', k_mended .. what, kind, 'NX', 'EX', QUIET_S)
  if type(is_new) == 'table' and is_new.ok then
    local length = raw_pcall('LPUSH', k_notices, kind .. ' ' .. what)
    if type(length) == 'table' then
      raw_pcall('DEL', k_notices)
      raw_pcall('LPUSH', k_notices, kind .. ' ' .. what)
    end
    raw_pcall('LTRIM', k_notices, 0, MAX_NOTICES - 1)
    raw_pcall('EXPIRE', k_notices, SPOILED_TTL_S)
  end
end

local function set_aside(key)
  raw_call('RENAME', key, k_spoiled .. key)
  raw_call('EXPIRE', k_spoiled .. key, SPOILED_TTL_S)
  note_mend('type', key)
end

-- Mends the cause of a failed command, if another program made it, and repeats the command. Raises its error otherwise.
local function mend(problem, ...)
  local command, key, field = ...
  if string.find(problem, 'WRONGTYPE', 1, true) then
    set_aside(key)
  elseif command == 'HINCRBY' and (string.find(problem, 'hash value is not an integer', 1, true)
    or string.find(problem, 'would overflow', 1, true)) then
    raw_call('HDEL', key, field)
    note_mend('number', key .. ' ' .. field)
  end
  return raw_call(...)
end

-- Returns the number that `stored` represents, or `default` if it is missing, is not a number or is outside `low` to
-- `high`. Without bounds, a number beyond 2^53 counts as spoiled: nothing that Penstock counts gets there, and a double
-- cannot represent the integers beyond.
local MAX_NUMBER = 2 ^ 53
local function number(stored, default, low, high)
  -- Most fields are missing.
  local value = stored and tonumber(stored)
  if value and value >= (low or -MAX_NUMBER) and value <= (high or MAX_NUMBER) then
    return value
  end
  return default
end

local function guarded_call(...)
  local answer = raw_pcall(...)
  if type(answer) == 'table' and answer.err then
    return mend(answer.err, ...)
  end
  return answer
end
local redis = { call = guarded_call, pcall = raw_pcall, sha1hex = raw_sha1hex }

-- Returns the values of these fields of a hash by name; missing ones are false. Where the names are written out, the
-- loader puts a table constructor in place of the call (shared/store/lua_bundle.py).
local function read_fields(key, names)
  local values, fields = redis.call('HMGET', key, unpack(names)), {}
  for i = 1, #names do
    fields[names[i]] = values[i]
  end
  return fields
end

-- Returns the values of these fields by name, without mending the key: all of them are missing if it has another type.
local function peek_fields(key, names)
  local values, fields = raw_pcall('HMGET', key, unpack(names)), {}
  for i = 1, #names do
    fields[names[i]] = values[i]
  end
  return fields
end
