-- append: appends new text to the event streams of jobs; one call serves all jobs of a worker.
-- KEYS events rq_job
-- ARGV
--   chunks rest · for each job: id, claim token, new text, number of tokens generated so far
-- ANSWERS appended
--   appended: ids of jobs that are not running under the given claim token
-- KEEPS 4
-- USES afford

local lost = {}
for i = chunks, #ARGV, 4 do
  local id = ARGV[i]
  local held = redis.pcall('HMGET', k_rq_job .. id, 'penstock_state', 'penstock_claim')
  if held[1] == 'running' and held[2] == ARGV[i + 1] then
    -- If the worker repeats a call whose answer was lost, the last entry of the stream already has this text.
    local last_entry = redis.pcall('XREVRANGE', k_events .. id, '+', '-', 'COUNT', 1)[1]
    local fields = type(last_entry) == 'table' and last_entry[2] or {}
    local is_repeat = fields[2] == 'token' and fields[4] == ARGV[i + 2] and fields[6] == ARGV[i + 3]
    -- NOMKSTREAM is given because the claim created the stream with a TTL. If another program has deleted the stream,
    -- this call must not create it again without a TTL.
    if not is_repeat then
      redis.pcall('XADD', k_events .. id, 'NOMKSTREAM', '*', 'type', 'token', 'text', ARGV[i + 2],
        'tokens', ARGV[i + 3])
    end
  else
    lost[#lost + 1] = id
  end
end
return { 'appended', unpack(lost) }
