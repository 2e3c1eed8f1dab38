-- running: counts a job as running, as paused, as computing again, and as no longer running; no other code does.
-- KEYS tenant rq_job
-- KEEPS 1 3 7
-- USES clock pool_record slots_in_use turns job_record history
-- A tenant with a paused job wants a slot as much as one with a queued job, so it is in its active set.

-- Adds to the slots in use of a job's tenant and of the group in which it was claimed, and to the KV cells of the
-- pool's computing jobs, in tokens.
local function count_rows(job, by)
  pool_record.book(job.slug, 'running_tokens', by * (job.prompt_tokens + job.max_tokens))
  for _, owner in ipairs({ job.tenant, job.group ~= '' and job.group or nil }) do
    slots_in_use.count_row(job.slug, 'c', owner, by)
    if job.priority < 0 then
      slots_in_use.count_row(job.slug, 'cb', owner, by)
    end
  end
end

local function count_paused(job, by)
  redis.call('HINCRBY', k_tenant .. job.tenant, 'paused', by)
  pool_record.book(job.slug, 'paused', by)
  slots_in_use.count_row(job.slug, 'p', job.tenant, by)
  if job.priority < 0 then
    slots_in_use.count_row(job.slug, 'pb', job.tenant, by)
  end
end

-- Counts a job that is being claimed. Its group must be set.
local function begin_running(job)
  redis.call('HINCRBY', k_tenant .. job.tenant, 'running', 1)
  pool_record.book(job.slug, 'running', 1)
  pool_record.book(job.slug, 'running_mwt', job.cost_mwt)
  count_rows(job, 1)
end

-- Counts a running job as paused. If its tenant had no queued and no paused job, the tenant's service is raised to the
-- virtual time like a newcomer's, without the credit: it wanted no more than it got.
local function pause(job)
  job.paused_since_ms = now_ms
  redis.call('HSET', k_rq_job .. job.id, 'penstock_paused_since_ms', now_ms)
  count_rows(job, -1)
  count_paused(job, 1)
  history.count_in_history(job.tenant, job.slug, 'pauses', 1)
  local is_batch = job.priority < 0
  if not turns.activate(job.tenant, job.slug, is_batch, true) and not is_batch then
    turns.change_set(job.tenant, job.slug, false, true)
  end
end

-- Ends the pause of a job that leaves it, for its slot or for good.
local function end_pause(job)
  redis.call('HINCRBY', k_rq_job .. job.id, 'penstock_paused_ms', math.max(0, now_ms - job.paused_since_ms))
  redis.call('HDEL', k_rq_job .. job.id, 'penstock_paused_since_ms')
  job.paused_since_ms = 0
  count_paused(job, -1)
  turns.deactivate(job.tenant, job.slug)
end

local function resume(job)
  end_pause(job)
  count_rows(job, 1)
end

-- Counts a running job, paused or not, as no longer running. If it goes back to its queue, it must be there already:
-- its tenant would otherwise leave the active set and come back as a newcomer.
local function end_running(job)
  redis.call('HINCRBY', k_tenant .. job.tenant, 'running', -1)
  pool_record.book(job.slug, 'running', -1)
  pool_record.book(job.slug, 'running_mwt', -job.cost_mwt)
  if job.paused_since_ms > 0 then
    end_pause(job)
  else
    count_rows(job, -1)
  end
end

-- Stores how long the job was paused in its earlier attempts, for `run_ms_of`.
local function note_earlier_pauses(job)
  local paused_ms = redis.call('HGET', k_rq_job .. job.id, 'penstock_paused_ms')
  if paused_ms then
    redis.call('HSET', k_rq_job .. job.id, 'penstock_paused_before_ms', paused_ms)
  end
end

-- Returns for how long the present attempt of a job that computes has had a slot, in ms, at least 1.
local function run_ms_of(job)
  local times = job_record.facts_of(job)
  local started_ms = number(times.penstock_started_ms, now_ms, job.admitted_ms, now_ms)
  local paused_ms = number(times.penstock_paused_ms, 0, 0) - number(times.penstock_paused_before_ms, 0, 0)
  return math.max(1, now_ms - started_ms - math.max(0, paused_ms))
end
