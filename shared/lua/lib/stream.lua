-- stream: adds an entry to a job's stream, whatever somebody else has put in its place.
-- KEYS
-- What stands there of another type gives way: an error after the first write would leave a job half moved.
local function add_entry(key, ...)
  local added = redis.pcall('XADD', key, ...)
  if type(added) == 'table' and added.err then
    redis.call('DEL', key)
    redis.call('XADD', key, ...)
  end
end
