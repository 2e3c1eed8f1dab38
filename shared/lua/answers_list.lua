-- answers_list: returns the vectors of the prompts whose answers were kept since a time; writes nothing.
-- KEYS answer_order answer_vectors
-- ARGV
--   tenant text · the tenant that asks
--   after_us int · the time of the last vector that the caller knows, in microseconds
--   limit int · the most vectors, at most 64
-- ANSWERS listed
--   listed: digests and times, alternating; the vectors in the same order, each with its scope before it
-- KEEPS 9
-- USES clock

local digests = redis.call('ZRANGEBYSCORE', k_answer_order .. tenant, '(' .. digits(after_us), '+inf', 'WITHSCORES',
  'LIMIT', 0, limit)
local vectors = {}
for at = 1, #digests, 2 do
  vectors[#vectors + 1] = redis.call('HGET', k_answer_vectors .. tenant, digests[at]) or ''
end
return { 'listed', digests, vectors }
