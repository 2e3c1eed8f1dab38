-- overview: returns the few numbers that show whether and how many jobs are admitted; writes nothing.
-- KEYS config inflight workers
-- ARGV
-- ANSWERS overview
--   overview: number of inflight jobs; the bound on them (a number or `auto`); number of live workers; number of their
--   slots; number of their pools' places; 1 if no new jobs are admitted, because the system or every live worker
--   drains; 1 if all live workers that do not drain belong to pools whose workers restart again and again, and are new.
--   The cost of this script does not depend on the numbers of tenants and metrics, and it looks at 64 workers at most.
-- KEEPS 1
-- USES clock schema worker_states

local settings = read_fields(k_config, { 'max_inflight', 'live_slots', 'live_places', 'draining', 'schema_oldest' })
local all_drain, none_lasts = worker_states.judge_workers(redis.call('ZREVRANGEBYSCORE', k_workers, '+inf',
  now_ms - LIVE_MS, 'LIMIT', 0, worker_states.MAX_JUDGED + 1))
return { 'overview', redis.call('ZCARD', k_inflight), settings.max_inflight or '',
  redis.call('ZCOUNT', k_workers, now_ms - LIVE_MS, '+inf'), settings.live_slots or '', settings.live_places or '',
  (settings.draining == '1' or schema.is_outdated(settings.schema_oldest) or all_drain) and 1 or 0, none_lasts and 1
  or 0 }
