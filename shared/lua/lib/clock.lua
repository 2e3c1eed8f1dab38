-- clock: the store's TIME, in ms and µs, as `now_ms` and `now_us`.
-- KEYS clock
-- In service `penstock:clock` is absent. A test or a virtual-time benchmark sets it: a number is added to
-- TIME in ms, `=<ms>` holds time at that moment.
local time, set_clock = redis.call('TIME'), redis.call('GET', k_clock)
local now_us = tonumber(time[1]) * 1000000 + tonumber(time[2])
if set_clock and string.sub(set_clock, 1, 1) == '=' then
  now_us = tonumber(string.sub(set_clock, 2)) * 1000
elseif set_clock then
  now_us = now_us + tonumber(set_clock) * 1000
end
local now_ms = math.floor(now_us / 1000)

-- How long after its last heartbeat a worker still counts as live.
local LIVE_MS = 5000

-- Lua's tostring keeps 14 digits; every number beyond 1e14 goes through here.
local function whole(number)
  return string.format('%.0f', number)
end
