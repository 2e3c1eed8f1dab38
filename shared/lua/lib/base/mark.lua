-- mark: stores the time that this script has seen as the mark, behind which no later script's time goes back.
-- KEYS mark inflight
-- USES clock
-- Every script that stores a time uses this file, after lib/base/oom_write.lua, so that the mark is stored when the
-- store has reached maxmemory. If the store refuses the write all the same, the script continues without it: the mark
-- of another script is at most one pass of a reaper old.
-- While there is an offset, the mark counts how much time was lost by running slower. The count begins again when no
-- job is left that was inflight when it last began, so that each job loses at most 2 * MAX_LOST_US.
if not last_mark.is_set and now_us - last_mark.us >= MARK_EVERY_US then
  local record = digits(now_us)
  if now_us > machine_us then
    local oldest_ms = redis.pcall('ZRANGE', k_inflight, 0, 0, 'WITHSCORES')[2]
    local passed_us = machine_us + last_mark.ahead_us - last_mark.us
    if passed_us >= 0 and passed_us <= CORRECTION_US then
      last_mark.lost_us = last_mark.lost_us + machine_us + last_mark.ahead_us - now_us
    end
    if not oldest_ms or 1000 * tonumber(oldest_ms) > last_mark.lost_since_us then
      last_mark.lost_us, last_mark.lost_since_us = 0, now_us
    end
    record = string.format('%.0f %.0f %.0f %.0f', now_us, now_us - machine_us, last_mark.lost_us,
      last_mark.lost_since_us)
  end
  redis.pcall('SET', k_mark, record)
end
