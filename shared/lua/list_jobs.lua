-- list_jobs: reads a part of a list of jobs, newest first, and returns those that match a filter; writes nothing.
-- KEYS inflight jobs recent_jobs rq_job
-- ARGV
--   tenant text · only jobs of this tenant; '' for the newest jobs of all tenants
--   inflight_only int · 1 if only queued and running jobs are wanted, so that no ended job has to be examined
--   after_ms int · when the job was admitted behind which the part begins, in ms; -1 for the beginning of the list
--   after_id text · the id of that job, which need not be in the list any more
--   since_ms int · only jobs admitted at this time or later, in ms
--   until_ms int · only jobs admitted at this time or before, in ms; -1 for no such bound
--   id_prefix text · only jobs whose ids begin with this text
--   states text · only jobs in one of these states, separated by spaces; '' for all
--   key_label text · only jobs of the API key with this label; '' for all
--   model text · only jobs of this pool's model; '' for all
--   reason text · only jobs with this error code or, without an error, this finish reason; '' for all
--   limit int · the largest number of jobs to return, at most 64
-- ANSWERS page
--   page: now in ms; 1 if there may be more jobs; when the last job that was examined was admitted, in ms, and its id
--   (`after_ms` and `after_id` if none was); how many records were read; for each job that matches, a list of its id,
--   the time of its admission in ms, and the values of FIELDS, '' for a missing one
-- KEEPS 4
-- USES clock

-- At most this many records are read. With an id prefix, this many ids are compared before their records are read.
local MAX_RECORDS, MAX_COMPARED_IDS = 64, 1024
-- shared/store/job_list.py decodes them in this order.
local FIELDS = { 'penstock_tenant', 'penstock_model', 'penstock_state', 'penstock_key_label', 'penstock_code',
  'penstock_finish_reason', 'penstock_started_ms', 'penstock_ended_ms', 'penstock_attempts', 'penstock_worker',
  'penstock_cancel', 'penstock_paused_since_ms', 'penstock_prompt_tokens', 'penstock_max_tokens',
  'penstock_answer_tokens' }

-- The lists have the same order and the same scores. Of two that contain all wanted jobs, the shorter one is read.
local list = tenant == '' and k_recent_jobs or k_jobs .. tenant
if inflight_only == 1 and (tenant == '' or redis.call('ZCARD', k_inflight) < redis.call('ZCARD', list)) then
  list = k_inflight
end

local function first_rank()
  if after_ms < 0 then
    return until_ms < 0 and 0 or redis.call('ZCOUNT', list, '(' .. digits(until_ms), '+inf')
  end
  local rank = redis.call('ZREVRANK', list, after_id)
  return rank and rank + 1 or redis.call('ZCOUNT', list, '(' .. digits(after_ms), '+inf')
end

local function matches(record)
  local why = record.penstock_code or ''
  why = why ~= '' and why or record.penstock_finish_reason or ''
  return record.penstock_state and (tenant == '' or record.penstock_tenant == tenant)
    and (states == '' or string.find(' ' .. states .. ' ', ' ' .. record.penstock_state .. ' ', 1, true))
    and (key_label == '' or record.penstock_key_label == key_label)
    and (model == '' or record.penstock_model == model) and (reason == '' or why == reason)
end

local first = first_rank()
local compared = id_prefix == '' and MAX_RECORDS or MAX_COMPARED_IDS
local entries = redis.call('ZREVRANGE', list, first, first + compared - 1, 'WITHSCORES')
local found, records, has_more = {}, 0, #entries == 2 * compared
for i = 1, #entries, 2 do
  local id, admitted_ms = entries[i], number(entries[i + 1], 0)
  if admitted_ms < since_ms then
    has_more = false
    break
  end
  if records == MAX_RECORDS or #found == math.min(limit, MAX_RECORDS) then
    has_more = true
    break
  end
  -- The job behind which the part begins may have left the list; those before it were examined already.
  local is_new = admitted_ms ~= after_ms or id < after_id
  after_ms, after_id = admitted_ms, id
  if is_new and string.sub(id, 1, #id_prefix) == id_prefix then
    records = records + 1
    local record = peek_fields(k_rq_job .. id, FIELDS)
    if matches(record) then
      local values = { id, digits(admitted_ms) }
      for _, name in ipairs(FIELDS) do
        values[#values + 1] = record[name] or ''
      end
      found[#found + 1] = values
    end
  end
end
return { 'page', now_ms, has_more and 1 or 0, after_ms, after_id, records, found }
