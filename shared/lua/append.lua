-- append: appends new text to the event streams of jobs and stores its token ids; one call serves a worker's jobs.
-- KEYS events partial rq_job
-- ARGV
--   repeated int · 1 if the worker has sent these texts before and got no answer
--   asks int · 1 if the worker wants to be told which of these jobs are followed
--   chunks rest · for each job: id, claim token, new text or '', tokens so far, packed ids of the new ones or '', seal
-- ANSWERS appended
--   appended: a list of the ids of jobs that are not running under the given claim token; a list of the ids of followed
--   jobs, empty unless it was asked for
-- KEEPS 4
-- USES oom_write

-- Returns whether the newest entry of the job's stream has this text: an earlier call has added it.
local function has_text(id, text, tokens)
  local last_entry = redis.pcall('XREVRANGE', k_events .. id, '+', '-', 'COUNT', 1)[1]
  local fields = type(last_entry) == 'table' and last_entry[2] or {}
  return fields[2] == 'token' and fields[4] == text and fields[6] == tokens
end

-- Adds text to the job's stream. Returns whether the stream has the text.
local function add_text(id, text, tokens)
  if repeated == 1 and has_text(id, text, tokens) then
    return true
  end
  -- NOMKSTREAM is given because the claim created the stream with a TTL. If another program has deleted the stream,
  -- this call must not create it again without a TTL.
  return type(redis.pcall('XADD', k_events .. id, 'NOMKSTREAM', '*', 'type', 'token', 'text', text, 'tokens', tokens))
    == 'string'
end

local lost, followed = {}, {}
for i = chunks, #ARGV, 6 do
  local id, text, tokens, ids = ARGV[i], ARGV[i + 2], ARGV[i + 3], ARGV[i + 4]
  local held = peek_fields(k_rq_job .. id, { 'penstock_state', 'penstock_claim', 'penstock_followed' })
  if held.penstock_state ~= 'running' or held.penstock_claim ~= ARGV[i + 1] then
    lost[#lost + 1] = id
  elseif text ~= '' or ids ~= '' then
    local is_added = text == '' or add_text(id, text, tokens)
    -- If the ids of an earlier call are missing, the bytes before the offset do not fit the seal, and no id is used.
    local is_stored = is_added and ids ~= ''
      and redis.pcall('SETRANGE', k_partial .. id, 4 * number(tokens, 0) - #ids, ids .. ARGV[i + 5])
    if type(is_stored) ~= 'number' then
      -- No later attempt may continue the answer if the ids and the text in the stream do not agree.
      redis.call('DEL', k_partial .. id)
    end
  end
  if asks == 1 and held.penstock_followed == '1' then
    followed[#followed + 1] = id
  end
end
return { 'appended', lost, followed }
