-- overview: returns the few numbers that show whether and how many jobs are admitted; writes nothing.
-- KEYS config inflight workers
-- ARGV
-- ANSWERS overview
--   overview: number of inflight jobs; the bound on them (a number or `auto`); number of live workers; number of their
--   slots; number of their pools' places; 1 if no new jobs are admitted. The cost of this script does not depend on the
--   numbers of workers, tenants and metrics.
-- KEEPS 1
-- USES clock schema

local settings = redis.call('HMGET', k_config, 'max_inflight', 'live_slots', 'live_places', 'draining',
  'schema_oldest')
return { 'overview', redis.call('ZCARD', k_inflight), settings[1] or '',
  redis.call('ZCOUNT', k_workers, now_ms - LIVE_MS, '+inf'), settings[2] or '', settings[3] or '',
  (settings[4] == '1' or is_outdated(settings[5])) and 1 or 0 }
