-- live_places: keeps the number of jobs that the live pools can work off in time: the automatic bound on inflight jobs.
-- KEYS config books
-- USES settings
-- A pool's number is stored in its pool record as `places`, and the sum over all pools in the config as `live_places`.
-- Heartbeats change them by differences, so an admission reads only the sum.

-- A pool has at least this many places for each of its slots.
local PLACES_PER_SLOT = 4
-- The jobs of mean cost that may be queued at most, in full admission: check_backlog admits no job when the pool's
-- queued work exceeds PENSTOCK_MAX_WAIT_MS by a quarter.
local BACKLOG_PART = 1.25
-- The largest value of PENSTOCK_MAX_INFLIGHT. The sum may be larger; read_settings returns it as this value then.
local MAX_PLACES = 10000000
-- One heartbeat lowers a pool's places to this part at most. The mean cost of a job varies from job to job, and a bound
-- that fell as quickly would refuse jobs for whose backlog there is room a second later.
local LOWERED_TO = 7 / 8

-- Returns the places of a pool with this many slots that computes `mu_milli` thousandths of a weighted token per
-- second, or 0 if that is unknown.
local function places_wanted(slots, mu_milli, mean_mwt, max_wait_ms)
  local least = PLACES_PER_SLOT * slots
  if slots == 0 or mu_milli <= 0 or not mean_mwt then
    return least
  end
  -- 1 wt/s is 1 mwt/ms.
  return math.max(least, slots + math.ceil(BACKLOG_PART * max_wait_ms * mu_milli / 1000 / mean_mwt))
end

local function update_places(slug, slots, mu_milli)
  local key = k_books .. slug
  local stored, max_wait_ms = read_fields(key, { 'places', 'mean_mwt' }), settings.read_setting('max_wait_ms')
  local held, mean_mwt = number(stored.places, 0, 0, MAX_PLACES), number(stored.mean_mwt, nil, 1)
  local places = places_wanted(slots, mu_milli, mean_mwt, max_wait_ms)
  if slots > 0 then
    places = math.min(MAX_PLACES, math.max(places, math.floor(LOWERED_TO * held)))
  end
  if places ~= held or not stored.places then
    local live_places = number(redis.call('HGET', k_config, 'live_places'), 0, 0)
    redis.call('HSET', key, 'places', whole(places))
    redis.call('HSET', k_config, 'live_places', whole(math.max(0, live_places + places - held)))
  end
end
