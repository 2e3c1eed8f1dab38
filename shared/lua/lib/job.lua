-- job: reads and writes our fields of RQ's job hash.
-- KEYS rq_job
local JOB_STATES = { queued = true, running = true, succeeded = true, failed = true, canceled = true, expired = true }

-- Until when somebody wants a job that waits: its deadline or, where that is sooner, the latest moment for its first token.
local function wanted_until(deadline_ms, admitted_ms, start_within_ms)
  return start_within_ms > 0 and math.min(deadline_ms, admitted_ms + start_within_ms) or deadline_ms
end

-- The job's fields by name, or nil when it is none of ours. A key of another type counts as none, and so does
-- a record whose state is no state.
local function read_job(id)
  local got = redis.pcall('HMGET', k_rq_job .. id, 'penstock_state', 'penstock_tenant', 'penstock_slug', 'penstock_model',
    'penstock_claim', 'penstock_worker', 'penstock_cancel', 'penstock_prompt_tokens', 'penstock_max_tokens',
    'penstock_cost_mwt', 'penstock_charged_mwt', 'penstock_deadline_ms', 'penstock_latest_us', 'penstock_attempts',
    'penstock_admitted_ms', 'penstock_poll_grace_ms', 'penstock_skips', 'penstock_requeued_at_ms',
    'penstock_degrade', 'penstock_cut_tokens', 'penstock_start_within_ms')
  if got.err or not JOB_STATES[got[1]] or not got[2] or not got[3] then
    return nil
  end
  -- A field that is missing, and one that should be a number and is none, count as empty and as 0.
  local function number(at)
    return tonumber(got[at] or 0) or 0
  end
  return { id = id, state = got[1], tenant = got[2], slug = got[3], queue = got[2] .. '.' .. got[3], model = got[4] or '',
    claim = got[5] or '', worker = got[6] or '', cancel = got[7] or '', prompt_tokens = number(8), max_tokens = number(9),
    cost_mwt = number(10), charged_mwt = number(11), deadline_ms = number(12), latest_us = number(13), attempts = number(14),
    admitted_ms = number(15), poll_grace_ms = number(16), skips = number(17), requeued_at_ms = number(18),
    degrade = tonumber(got[19] or nil) or -1, cut_tokens = number(20), start_within_ms = number(21),
    wanted_ms = wanted_until(number(12), number(15), number(21)) }
end
