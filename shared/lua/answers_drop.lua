-- answers_drop: deletes the answers of a tenant's semantic cache.
-- KEYS answers answer_order answer_vectors
-- ARGV
--   tenant text · the tenant whose answers are deleted
-- ANSWERS dropped
--   dropped: 1 if there were any, else 0
-- KEEPS 9
-- USES clock oom_write mark cached_answers

local periods = cached_answers.read_answer_periods(tenant)
local dropped = redis.call('UNLINK', k_answers .. tenant)
redis.call('UNLINK', k_answer_order .. tenant)
redis.call('UNLINK', k_answer_vectors .. tenant)
cached_answers.uncount_answers(periods)
return { 'dropped', dropped }
