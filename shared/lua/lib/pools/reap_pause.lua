-- reap_pause: pauses the reaping of leases after a gap in the heartbeats.
-- KEYS config workers
-- USES clock

-- There is a gap if the store has received no heartbeat from any worker for 2 s: either the store or all workers were
-- unavailable. For the length of one lease after a gap, no jobs are taken back, so that workers that return can renew
-- the leases of their jobs. Each gap starts at most one such pause. A gap that is as long as a lease always starts a
-- pause. A shorter gap starts one only if the last pause ended at least one lease ago. Otherwise, workers whose
-- heartbeats are always late would keep the pause going, and the jobs of a dead worker would never be taken back.
local GAP_MS = 2000

-- Starts a pause of reaping if there is a gap in the heartbeats.
local function note_gap(now_ms, lease_ms)
  local newest = redis.call('ZRANGE', k_workers, -1, -1, 'WITHSCORES')
  local heartbeat_ms = newest[2]
  if not heartbeat_ms or now_ms - number(heartbeat_ms, now_ms) <= GAP_MS then
    return
  end
  local hold = read_fields(k_config, { 'hold_beat_ms', 'hold_until_ms' })
  local pause_allowed = now_ms - number(hold.hold_until_ms, 0) >= lease_ms
  if hold.hold_beat_ms ~= heartbeat_ms and (pause_allowed or now_ms - number(heartbeat_ms, now_ms) >= lease_ms) then
    redis.call('HSET', k_config, 'hold_beat_ms', heartbeat_ms, 'hold_until_ms', now_ms + lease_ms)
  end
end

-- Returns the time until which the reaping of leases is paused, or 0. No pause is longer than the longest lease, so a
-- later time was not written by `note_gap`.
local MAX_PAUSE_MS = 600000
local function held_until_ms()
  return number(redis.call('HGET', k_config, 'hold_until_ms'), 0, 0, now_ms + MAX_PAUSE_MS)
end

local function holds_leases(now_ms)
  return held_until_ms() > now_ms
end
