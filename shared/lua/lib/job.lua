-- job: reads and writes our fields of RQ's job hash.
-- KEYS rq_job
local JOB_TEXT = { 'state', 'tenant', 'slug', 'model', 'claim', 'worker', 'cancel' }
local JOB_NUMBERS = { 'prompt_tokens', 'max_tokens', 'cost_mwt', 'charged_mwt', 'deadline_ms', 'latest_us', 'attempts',
  'admitted_ms', 'poll_grace_ms', 'skips', 'requeued_at_ms' }
local JOB_FIELDS = {}
for i = 1, #JOB_TEXT do JOB_FIELDS[i] = 'penstock_' .. JOB_TEXT[i] end
for i = 1, #JOB_NUMBERS do JOB_FIELDS[#JOB_TEXT + i] = 'penstock_' .. JOB_NUMBERS[i] end

local JOB_STATES = { queued = true, running = true, succeeded = true, failed = true, canceled = true, expired = true }

-- The job's fields by name, or nil when it is none of ours. A key of another type counts as none, and so does
-- a record whose state is no state.
local function read_job(id)
  local got = redis.pcall('HMGET', k_rq_job .. id, unpack(JOB_FIELDS))
  if got.err or not JOB_STATES[got[1]] or not got[2] or not got[3] then
    return nil
  end
  local job = { id = id }
  for i = 1, #JOB_TEXT do job[JOB_TEXT[i]] = got[i] or '' end
  for i = 1, #JOB_NUMBERS do job[JOB_NUMBERS[i]] = tonumber(got[#JOB_TEXT + i] or 0) or 0 end
  job.queue = job.tenant .. '.' .. job.slug
  return job
end
