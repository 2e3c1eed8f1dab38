-- doorbell: wakes an idle worker of a pool.
-- KEYS wake
-- If this many rings have not been read, no worker is idle, and another ring would have no effect.
local MAX_RINGS = 64

local function ring(slug)
  if redis.call('LLEN', k_wake .. slug) < MAX_RINGS then
    redis.call('LPUSH', k_wake .. slug, '1')
    redis.call('EXPIRE', k_wake .. slug, 60)
  end
end
