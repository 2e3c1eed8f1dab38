-- passages_drop: deletes the passages that were stored for a tenant's queries, and those of searches that still run.
-- KEYS passages passage_ages passages_dropped passage_bytes
-- ARGV
--   tenant text · the tenant whose documents were deleted
-- ANSWERS dropped
--   dropped: 1 if there were any, else 0
-- KEEPS 9
-- USES clock oom_write mark kept_periods

-- No search takes as long as this.
local SEARCHES_MS = 60000
local periods = kept_periods.read_periods(k_passages .. tenant)
local dropped = redis.call('UNLINK', k_passages .. tenant)
redis.call('UNLINK', k_passage_ages .. tenant)
kept_periods.uncount_kept(k_passage_bytes, periods)
redis.call('SET', k_passages_dropped .. tenant, now_ms, 'PX', SEARCHES_MS)
return { 'dropped', dropped }
