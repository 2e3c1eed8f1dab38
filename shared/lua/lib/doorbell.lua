-- doorbell: rings for an idle worker of a pool.
-- KEYS wake
-- With so many rings unheard, nobody is idle, and one more would tell nothing.
local MOST_RINGS = 64

local function ring(slug)
  if redis.call('LLEN', k_wake .. slug) < MOST_RINGS then
    redis.call('LPUSH', k_wake .. slug, '1')
    redis.call('EXPIRE', k_wake .. slug, 60)
  end
end
