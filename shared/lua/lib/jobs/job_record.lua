-- job_record: reads Penstock's fields from RQ's job hash.
-- KEYS order rq_job
-- USES priority generated_weight service
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
  local fields = peek_fields(k_rq_job .. id, { 'penstock_state', 'penstock_tenant', 'penstock_slug', 'penstock_model',
    'penstock_claim', 'penstock_worker', 'penstock_cancel', 'penstock_prompt_tokens', 'penstock_max_tokens',
    'penstock_cost_mwt', 'penstock_charged_mwt', 'penstock_deadline_ms', 'penstock_latest_us', 'penstock_attempts',
    'penstock_admitted_ms', 'penstock_poll_grace_ms', 'penstock_skips', 'penstock_requeued_at_ms', 'penstock_degrade',
    'penstock_cut_tokens', 'penstock_start_within_ms', 'penstock_key_id', 'penstock_group',
    'penstock_group_charged_mwt', 'penstock_paused_since_ms', 'penstock_price', 'penstock_kept_tokens',
    'penstock_private', 'penstock_priority', 'penstock_budget', 'penstock_candidates', 'penstock_wait_until_ms',
    'penstock_refusals', 'penstock_pardons', 'penstock_company', 'penstock_predicted', 'penstock_traceparent',
    'penstock_key_label', 'penstock_followed', 'penstock_prefix', 'penstock_generated_weight_milli' })
  if not JOB_STATES[fields.penstock_state] or not fields.penstock_tenant or not fields.penstock_slug then
    return nil
  end
  -- A missing text is read as empty.
  local function integer(name)
    return natural(fields[name])
  end
  local attempts, pardons = integer('penstock_attempts'), integer('penstock_pardons')
  -- `counted_attempts` leaves out the crashes in company, and `company` is how many jobs may run together with this
  -- one, itself included, or 0 for any number (lib/pools/company.lua).
  return { id = id, state = fields.penstock_state, tenant = fields.penstock_tenant, slug = fields.penstock_slug,
    queue = fields.penstock_tenant .. '.' .. fields.penstock_slug, model = fields.penstock_model or '',
    claim = fields.penstock_claim or '', worker = fields.penstock_worker or '', cancel = fields.penstock_cancel or '',
    prompt_tokens = integer('penstock_prompt_tokens'), max_tokens = integer('penstock_max_tokens'),
    cost_mwt = integer('penstock_cost_mwt'), charged_mwt = integer('penstock_charged_mwt'),
    deadline_ms = integer('penstock_deadline_ms'), latest_us = integer('penstock_latest_us'), attempts = attempts,
    counted_attempts = attempts - math.min(pardons, attempts), pardons = pardons,
    company = integer('penstock_company'), admitted_ms = integer('penstock_admitted_ms'),
    poll_grace_ms = integer('penstock_poll_grace_ms'), skips = integer('penstock_skips'),
    requeued_at_ms = integer('penstock_requeued_at_ms'), degrade = number(fields.penstock_degrade, -1),
    cut_tokens = integer('penstock_cut_tokens'), start_within_ms = integer('penstock_start_within_ms'),
    key_id = fields.penstock_key_id or '', key_label = fields.penstock_key_label or '',
    prefix = string.match(fields.penstock_prefix or '', '^[%x ]+$') and string.sub(fields.penstock_prefix, 1, 64) or '',
    traceparent = fields.penstock_traceparent or '', predicted = fields.penstock_predicted or '',
    group = service.group_in(fields.penstock_group),
    group_charged_mwt = integer('penstock_group_charged_mwt'), paused_since_ms = integer('penstock_paused_since_ms'),
    price = fields.penstock_price or '', kept_tokens = math.min(integer('penstock_kept_tokens'),
    integer('penstock_max_tokens')), candidates = number(fields.penstock_candidates, 1, 1, MAX_CANDIDATES),
    is_private = fields.penstock_private == '1', priority = priority.priority_in(fields.penstock_priority),
    budget = fields.penstock_budget or '', wait_until_ms = integer('penstock_wait_until_ms'),
    followed = fields.penstock_followed or '',
    weight_milli = generated_weight.weight_of_pool(nil, fields.penstock_generated_weight_milli),
    refusals = integer('penstock_refusals'), wanted_ms = wanted_until(integer('penstock_deadline_ms'),
    integer('penstock_admitted_ms'), integer('penstock_start_within_ms')) }
end

-- Returns the number of tokens of the jobs before the one with this rank in a queue; -1 if it is not queued, or if more
-- than 64 jobs are before it, because an exact sum is then of no use to a client.
local function tokens_before(queue, rank)
  local MAX_JOBS_BEFORE = 64
  if not rank or rank > MAX_JOBS_BEFORE then
    return -1
  end
  local before_tokens = 0
  for _, other_id in ipairs(rank > 0 and redis.call('ZRANGE', k_order .. queue, 0, rank - 1) or {}) do
    local tokens = peek_fields(k_rq_job .. other_id, { 'penstock_prompt_tokens', 'penstock_max_tokens' })
    before_tokens = before_tokens + number(tokens.penstock_prompt_tokens, 0) + number(tokens.penstock_max_tokens, 0)
  end
  return before_tokens
end

-- Returns fields of a job that its end reads, by name. They are read once, before the end changes any of them.
local function facts_of(job)
  if not job.facts then
    job.facts = read_fields(k_rq_job .. job.id, { 'penstock_started_ms', 'penstock_paused_ms',
      'penstock_paused_before_ms', 'penstock_eta_ms', 'penstock_callback_url', 'penstock_keeps_request',
      'penstock_keeps_always',      'penstock_bytes', 'penstock_fixed_bytes' })
  end
  return job.facts
end

local function read_held(id, token, worker)
  local job = read_job(id)
  return job and job.state == 'running' and job.claim == token and job.worker == worker and job or nil
end

-- Returns the fields that a heartbeat needs of a job that the worker holds under this claim, by the names of
-- `read_job`; nil if the worker does not hold it. A worker may hold hundreds of jobs, so no other field is read.
local function read_beating(id, token, worker)
  local fields = peek_fields(k_rq_job .. id, { 'penstock_state', 'penstock_claim', 'penstock_worker', 'penstock_tenant',
    'penstock_slug', 'penstock_cancel', 'penstock_prompt_tokens', 'penstock_cost_mwt', 'penstock_charged_mwt',
    'penstock_group', 'penstock_group_charged_mwt', 'penstock_paused_since_ms', 'penstock_generated_weight_milli' })
  if fields.penstock_state ~= 'running' or fields.penstock_claim ~= token or fields.penstock_worker ~= worker
    or not fields.penstock_tenant or not fields.penstock_slug then
    return nil
  end
  return { id = id, tenant = fields.penstock_tenant, slug = fields.penstock_slug, cancel = fields.penstock_cancel or '',
    prompt_tokens = natural(fields.penstock_prompt_tokens), cost_mwt = natural(fields.penstock_cost_mwt),
    charged_mwt = natural(fields.penstock_charged_mwt), group = service.group_in(fields.penstock_group),
    group_charged_mwt = natural(fields.penstock_group_charged_mwt),
    paused_since_ms = natural(fields.penstock_paused_since_ms),
    weight_milli = generated_weight.weight_of_pool(nil, fields.penstock_generated_weight_milli) }
end
