-- append: adds new text to the event streams of jobs, all jobs of a worker in one call.
-- KEYS events rq_job
-- ARGV
--   chunks rest · id, token, text, tokens so far, …
-- ANSWERS appended
--   appended: ids that this token no longer holds
-- KEEPS 4
-- USES afford

local lost = {}
for i = chunks, #ARGV, 4 do
  local id = ARGV[i]
  local held = redis.pcall('HMGET', k_rq_job .. id, 'penstock_state', 'penstock_claim')
  if held[1] == 'running' and held[2] == ARGV[i + 1] then
    -- Sent again after a lost answer, the last entry is already there.
    local last = redis.pcall('XREVRANGE', k_events .. id, '+', '-', 'COUNT', 1)[1]
    local fields = type(last) == 'table' and last[2] or {}
    local again = fields[2] == 'token' and fields[4] == ARGV[i + 2] and fields[6] == ARGV[i + 3]
    -- NOMKSTREAM: the claim made the stream with its TTL; one that somebody removed is not made again without.
    if not again then
      redis.pcall('XADD', k_events .. id, 'NOMKSTREAM', '*', 'type', 'token', 'text', ARGV[i + 2], 'tokens', ARGV[i + 3])
    end
  else
    lost[#lost + 1] = id
  end
end
return { 'appended', unpack(lost) }
