-- live: who is live, what that makes possible, and what it means when nobody was.
-- KEYS config worker workers
-- USES clock rq

-- If nobody's beat is younger than 2 s, the store or everybody was away: leases are then left alone for one
-- lease, so that those who come back can name what they hold. Noted once for each such gap. A gap in which no lease
-- lapses prolongs no hold, nor does it begin another before leases could be taken back for as long: beats that always
-- come late would keep the jobs of the dead for ever.
local GAP_MS = 2000

local function note_gap(now_ms, lease_ms)
  local newest = redis.call('ZRANGE', k_workers, -1, -1, 'WITHSCORES')
  local beat = newest[2]
  if not beat or now_ms - tonumber(beat) <= GAP_MS then
    return
  end
  local held = redis.call('HMGET', k_config, 'hold_beat_ms', 'hold_until_ms')
  local rested = now_ms - (tonumber(held[2] or 0) or 0) >= lease_ms
  if held[1] ~= beat and (rested or now_ms - tonumber(beat) >= lease_ms) then
    redis.call('HSET', k_config, 'hold_beat_ms', beat, 'hold_until_ms', now_ms + lease_ms)
  end
end

local function holds_leases(now_ms)
  return tonumber(redis.call('HGET', k_config, 'hold_until_ms') or 0) > now_ms
end

-- What `auto` bounds are made of; at most the 64 most recently seen workers are asked.
local function count_live_slots(now_ms)
  local slots = 0
  local live = redis.call('ZREVRANGEBYSCORE', k_workers, '+inf', now_ms - LIVE_MS, 'LIMIT', 0, 64)
  for i = 1, #live do
    slots = slots + tonumber(redis.call('HGET', k_worker .. live[i], 'slots') or 0)
  end
  redis.call('HSET', k_config, 'live_slots', slots)
end
