-- answers_drop: deletes the answers of a tenant's semantic cache.
-- KEYS answers answer_order answer_vectors answer_bytes
-- ARGV
--   tenant text · the tenant whose answers are deleted
-- ANSWERS dropped
--   dropped: 1 if there were any, else 0
-- KEEPS 9
-- USES clock oom_write mark kept_periods

local periods = kept_periods.read_periods(k_answers .. tenant)
local dropped = redis.call('UNLINK', k_answers .. tenant)
redis.call('UNLINK', k_answer_order .. tenant)
redis.call('UNLINK', k_answer_vectors .. tenant)
kept_periods.uncount_kept(k_answer_bytes, periods)
return { 'dropped', dropped }
