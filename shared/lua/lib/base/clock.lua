-- clock: defines `now_ms` and `now_us`, the time of all scripts in ms and µs, which never goes back.
-- KEYS clock mark
-- The time is the machine's clock (TIME) plus an offset. The offset is 0 unless the machine's clock was set back. The
-- key `penstock:mark` holds the latest time that scripts have seen and, if the offset is not 0, what is needed to
-- compute it: `<mark> <offset> <time lost> <since>`, in µs. lib/base/mark.lua writes it; docs/adr/0029-clock-jumps.md
-- explains the rules. shared/store_clock.py computes the same time for Python code.
-- Tests set the key `penstock:clock`, which in production does not exist. A number in ms is added to TIME, and a value
-- of the form `@<ms>` replaces TIME. With the form `=<ms>` the scripts' time stands at that value, and the mark is
-- neither read nor written.

-- A mark is stored if the last one is at least this old. After a step back, time continues this much after the last
-- mark, so that it is later than all times that scripts have stored.
local MARK_EVERY_US = 100000
-- While there is an offset, an advance of more than this since the last mark is a correction of the machine's clock:
-- scripts run at least every 250 ms (shared/store/reaper.py).
local CORRECTION_US = 1000000
-- While there is an offset, time runs slower by this fraction, so that the offset shrinks: less than a second a minute,
-- which is the longest period in the queue apart from the lives of jobs.
local SLOWER_BY = 1 / 64
-- How much time may be lost in one period (see lib/base/mark.lua). A job lives in two periods at most.
local MAX_LOST_US = 500000
-- A mark or a clock beyond this time (the year 2100) was not written by a script.
local LATEST_US = 4102444800000000

-- The machine's time, and what the stored mark says; `is_set` if a test has set the time, so that no mark is stored.
local last_mark = { us = 0, ahead_us = 0, lost_us = 0, lost_since_us = 0, is_set = false }
local machine_us, now_us

local function read_clock()
  local time, stored = redis.call('TIME'), redis.call('MGET', k_clock, k_mark)
  now_us = tonumber(time[1]) * 1000000 + tonumber(time[2])
  if stored[1] then
    local kind, ms = string.match(stored[1], '^([=@])(%d+)$')
    last_mark.is_set = kind == '='
    local set_us = kind and 1000 * tonumber(ms) or now_us + 1000 * (tonumber(stored[1]) or 0)
    now_us = (last_mark.is_set or set_us > 0 and set_us < LATEST_US) and set_us or now_us
  end
  machine_us = now_us
  if stored[2] and not last_mark.is_set then
    local mark_us, ahead_us, lost_us = tonumber(stored[2]), 0, 0
    if not mark_us then
      local mark, ahead, lost, since = string.match(stored[2], '^(%d+) (%d+) (%d+) (%d+)$')
      mark_us, ahead_us, lost_us = tonumber(mark or 0), tonumber(ahead or 0), tonumber(lost or 0)
      last_mark.lost_since_us = tonumber(since or 0)
    end
    if not (mark_us > 0 and mark_us < LATEST_US and ahead_us < LATEST_US) then
      mark_us, ahead_us = 0, 0
    end
    local passed_us = machine_us + ahead_us - mark_us
    if passed_us < 0 then
      now_us = mark_us + MARK_EVERY_US
    elseif passed_us > CORRECTION_US then
      now_us = math.max(machine_us, ahead_us > 0 and mark_us + MARK_EVERY_US or 0)
    elseif ahead_us > 0 and machine_us < mark_us + MARK_EVERY_US then
      local lost_now_us = math.max(0, math.min(passed_us * SLOWER_BY, MAX_LOST_US - lost_us))
      now_us = math.max(machine_us, mark_us + math.floor(passed_us - lost_now_us))
    end
    last_mark.us, last_mark.ahead_us, last_mark.lost_us = mark_us, ahead_us, lost_us
  end
end
read_clock()
local now_ms = math.floor(now_us / 1000)

-- A worker is considered live for this long after its last heartbeat.
local LIVE_MS = 5000

-- Formats a number without an exponent. Lua's tostring keeps only 14 digits, so numbers above 1e14 need this function.
local function digits(value)
  return string.format('%.0f', value)
end

-- Returns the nearest integer as an argument of a store command. The store itself writes integers up to 2^53 with all
-- digits, and much faster than string.format. But Redis 7.2 writes one with eight or more zeros at its end with an
-- exponent, which neither HINCRBY nor this code reads as an integer (redis/redis#13113).
local function whole(value)
  return value % 1 == 0 and (value == 0 or value % 100000000 ~= 0) and value or digits(value)
end
