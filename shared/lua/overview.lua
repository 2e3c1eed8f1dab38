-- overview: returns the few numbers that show whether and how many jobs are admitted; writes nothing.
-- KEYS config inflight workers worker
-- ARGV
-- ANSWERS overview
--   overview: number of inflight jobs; the bound on them (a number or `auto`); number of live workers; number of their
--   slots; number of their pools' places; 1 if no new jobs are admitted, because the system or every live worker drains.
--   The cost of this script does not depend on the numbers of tenants and metrics, and it looks at 64 workers at most.
-- KEEPS 1
-- USES clock schema

local MAX_LOOKED = 64

-- Returns whether every live worker has reported that it claims no more jobs. More than MAX_LOOKED are not believed to
-- drain all at once.
local function all_drain()
  local live = redis.call('ZREVRANGEBYSCORE', k_workers, '+inf', now_ms - LIVE_MS, 'LIMIT', 0, MAX_LOOKED + 1)
  if #live == 0 or #live > MAX_LOOKED then
    return false
  end
  for i = 1, #live do
    if redis.call('HGET', k_worker .. live[i], 'draining') ~= '1' then
      return false
    end
  end
  return true
end

local settings = redis.call('HMGET', k_config, 'max_inflight', 'live_slots', 'live_places', 'draining',
  'schema_oldest')
return { 'overview', redis.call('ZCARD', k_inflight), settings[1] or '',
  redis.call('ZCOUNT', k_workers, now_ms - LIVE_MS, '+inf'), settings[2] or '', settings[3] or '',
  (settings[4] == '1' or is_outdated(settings[5]) or all_drain()) and 1 or 0 }
