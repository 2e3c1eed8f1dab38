-- clock: the store's TIME, in ms and µs, as `now_ms` and `now_us`.
-- KEYS clock
-- A test or a virtual-time benchmark shifts it by the milliseconds in `penstock:clock`.
local time = redis.call('TIME')
local shift_ms = tonumber(redis.call('GET', k_clock) or 0)
local now_ms = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000) + shift_ms
local now_us = tonumber(time[1]) * 1000000 + tonumber(time[2]) + shift_ms * 1000

-- How long after its last heartbeat a worker still counts as live.
local LIVE_MS = 5000

-- Lua's tostring keeps 14 digits; every number beyond 1e14 goes through here.
local function whole(number)
  return string.format('%.0f', number)
end
