-- touch: a poll; reads one job as it is and notes that somebody wants it.
-- KEYS order result polls rq_job
-- ARGV
--   id text · the job
--   tenant text · whose job it must be, '' for an operator
--   quiet int · 1 to read without noting a poll
-- ANSWERS job gone
--   job: now in ms, place in the list from 1 or 0, tokens of the jobs before it or -1, result as JSON or '', then every
--   field and value of the record
-- KEEPS 1
-- USES clock afford job

local job = read_job(id)
if not job or (tenant ~= '' and job.tenant ~= tenant) then
  return { 'gone' }
end
if quiet == 0 and job.poll_grace_ms > 0 then
  redis.call('ZADD', k_polls, 'XX', now_ms + job.poll_grace_ms, id)
end
local rank = redis.call('ZRANK', k_order .. job.queue, id)
-- What stands before it in its own list; of a longer list than this nobody reads it to the token.
local MOST_BEFORE = 64
local before_tokens = -1
if rank and rank <= MOST_BEFORE then
  before_tokens = 0
  for _, other in ipairs(rank > 0 and redis.call('ZRANGE', k_order .. job.queue, 0, rank - 1) or {}) do
    local tokens = redis.pcall('HMGET', k_rq_job .. other, 'penstock_prompt_tokens', 'penstock_max_tokens')
    before_tokens = before_tokens + (tonumber(tokens[1] or 0) or 0) + (tonumber(tokens[2] or 0) or 0)
  end
end
local result = redis.pcall('GET', k_result .. id)
return { 'job', now_ms, rank and rank + 1 or 0, before_tokens, type(result) == 'string' and result or '',
  unpack(redis.call('HGETALL', k_rq_job .. id)) }
