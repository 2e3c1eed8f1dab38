-- job_record: reads Penstock's fields from RQ's job hash.
-- KEYS rq_job
-- USES priority
local JOB_STATES = { queued = true, running = true, succeeded = true, failed = true, canceled = true, expired = true }

local MAX_CANDIDATES = 16

-- Returns how many KV cells a job needs whose answers have `tokens` tokens together. Its candidates, which share the
-- tokens equally, are promised the cells of one.
local function cells_of(job, tokens)
  return job.prompt_tokens + math.ceil(tokens / job.candidates)
end

-- Returns the time at which a queued job expires: its deadline, or its start deadline if that is sooner.
local function wanted_until(deadline_ms, admitted_ms, start_within_ms)
  return start_within_ms > 0 and math.min(deadline_ms, admitted_ms + start_within_ms) or deadline_ms
end

-- Returns the number in a field of a job. All of them are integers and none is negative; anything else is read as 0, as
-- shared/store/decode.py reads it. Most fields of a job are missing or 0, and each claim reads all jobs of a worker.
local function natural(field)
  return field and field ~= '0' and number(string.match(field, '^%d+$'), 0) or 0
end

-- Returns the job's fields by name. Returns nil if the id has no record, if its key has another type, or if the record
-- has an unknown state and so is not one of Penstock's.
local function read_job(id)
  local fields = redis.pcall('HMGET', k_rq_job .. id, 'penstock_state', 'penstock_tenant', 'penstock_slug',
    'penstock_model', 'penstock_claim', 'penstock_worker', 'penstock_cancel', 'penstock_prompt_tokens',
    'penstock_max_tokens', 'penstock_cost_mwt', 'penstock_charged_mwt', 'penstock_deadline_ms', 'penstock_latest_us',
    'penstock_attempts', 'penstock_admitted_ms', 'penstock_poll_grace_ms', 'penstock_skips', 'penstock_requeued_at_ms',
    'penstock_degrade', 'penstock_cut_tokens', 'penstock_start_within_ms', 'penstock_key_id', 'penstock_group',
    'penstock_group_charged_mwt', 'penstock_paused_since_ms', 'penstock_price',
    'penstock_kept_tokens', 'penstock_private', 'penstock_priority', 'penstock_budget', 'penstock_candidates',
    'penstock_wait_until_ms', 'penstock_refusals', 'penstock_pardons', 'penstock_company')
  if fields.err or not JOB_STATES[fields[1]] or not fields[2] or not fields[3] then
    return nil
  end
  -- A missing text is read as empty.
  local function integer(index)
    return natural(fields[index])
  end
  local attempts, pardons = integer(14), integer(34)
  -- `counted_attempts` leaves out the crashes in company, and `company` is how many jobs may run together with this
  -- one, itself included, or 0 for any number (lib/pools/company.lua).
  return { id = id, state = fields[1], tenant = fields[2], slug = fields[3], queue = fields[2] .. '.' .. fields[3],
    model = fields[4] or '', claim = fields[5] or '', worker = fields[6] or '', cancel = fields[7] or '',
    prompt_tokens = integer(8), max_tokens = integer(9), cost_mwt = integer(10), charged_mwt = integer(11),
    deadline_ms = integer(12), latest_us = integer(13), attempts = attempts,
    counted_attempts = attempts - math.min(pardons, attempts), pardons = pardons, company = integer(35),
    admitted_ms = integer(15), poll_grace_ms = integer(16), skips = integer(17), requeued_at_ms = integer(18),
    degrade = number(fields[19], -1), cut_tokens = integer(20), start_within_ms = integer(21), key_id = fields[22]
    or '', group = string.match(fields[23] or '', '^@[%w_-]+$') or '', group_charged_mwt = integer(24),
    paused_since_ms = integer(25),
    price = fields[26] or '', kept_tokens = math.min(integer(27), integer(9)),
    candidates = number(fields[31], 1, 1, MAX_CANDIDATES),
    is_private = fields[28] == '1', priority = priority.priority_in(fields[29]),
    budget = fields[30] or '', wait_until_ms = integer(32), refusals = integer(33),
    wanted_ms = wanted_until(integer(12), integer(15), integer(21)) }
end
