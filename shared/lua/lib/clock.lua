-- clock: defines `now_ms` and `now_us`, the store's TIME in milliseconds and microseconds.
-- KEYS clock
-- Tests and virtual-time benchmarks set the key `penstock:clock`; in production it does not exist. A number is an
-- offset in ms that is added to TIME; a value of the form `=<ms>` stops the clock at that time.
local time, set_clock = redis.call('TIME'), redis.call('GET', k_clock)
local now_us = tonumber(time[1]) * 1000000 + tonumber(time[2])
if set_clock and string.sub(set_clock, 1, 1) == '=' then
  now_us = tonumber(string.sub(set_clock, 2)) * 1000
elseif set_clock then
  now_us = now_us + tonumber(set_clock) * 1000
end
local now_ms = math.floor(now_us / 1000)

-- A worker is considered live for this long after its last heartbeat.
local LIVE_MS = 5000

-- Formats a number without an exponent. Lua's tostring keeps only 14 digits, so numbers above 1e14 need this function.
local function whole(number)
  return string.format('%.0f', number)
end
