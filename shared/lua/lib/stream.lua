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
