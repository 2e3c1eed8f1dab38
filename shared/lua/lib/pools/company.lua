-- company: bounds how many jobs run together after crashes of their workers, until it is clear which job is the cause.
-- KEYS leases rq_job worker
-- USES settings job_record

-- The most leases that are searched for the jobs of one worker.
local MAX_SEARCHED = 1024
-- After this many crashes in company, a job may run only with half as many others. No more crashes than MAX_PARDONS are
-- not counted as attempts: from 4,096 jobs on, 2 + 12 crashes leave a job alone.
local FREE_CRASHES, MAX_PARDONS = 2, 16

-- Returns the running jobs of a worker, that whose lease ends first being the first.
local function jobs_on(worker)
  local ids, jobs = redis.call('ZRANGE', k_leases, 0, MAX_SEARCHED - 1), {}
  for i = 1, #ids do
    local job = redis.pcall('HGET', k_rq_job .. ids[i], 'penstock_worker') == worker and job_record.read_job(ids[i])
    if job and job.state == 'running' then
      jobs[#jobs + 1] = job
    end
  end
  return jobs
end

-- Notes that the worker of some jobs has crashed. If there are several, nobody knows which one is the cause, so the
-- crash counts for none of them as an attempt, and their company is halved. A job that ran alone has used up an
-- attempt.
local function note_company(jobs)
  if #jobs < 2 or settings.read_setting('max_attempts') < 2 then
    return
  end
  for _, job in ipairs(jobs) do
    if job.pardons < MAX_PARDONS then
      job.pardons, job.counted_attempts = job.pardons + 1, job.attempts - math.min(job.pardons + 1, job.attempts)
      redis.call('HSET', k_rq_job .. job.id, 'penstock_pardons', job.pardons)
    end
    if job.pardons >= FREE_CRASHES then
      job.company = math.ceil(math.min(job.company > 0 and job.company or #jobs, #jobs) / 2)
      redis.call('HSET', k_rq_job .. job.id, 'penstock_company', job.company)
    end
  end
end

-- Returns how many jobs run on the worker of a view, and how many may run together because of the company of one of
-- them.
local function company_on(view)
  if not view.company then
    local jobs = jobs_on(view.worker)
    view.company = { jobs = #jobs, most = math.huge }
    for _, job in ipairs(jobs) do
      view.company.most = math.min(view.company.most, job.company > 0 and job.company or math.huge)
    end
    if view.is_apart and view.company.most == math.huge then
      redis.call('HDEL', k_worker .. view.worker, 'apart')
      view.is_apart = false
    end
  end
  return view.company
end

-- Returns 'worker' if the worker of a view takes no further job until one of its own ends, 'job' if this job waits
-- until the worker has fewer, and otherwise nil.
local function kept_apart(view, job)
  if view.is_apart and company_on(view).jobs >= company_on(view).most then
    return 'worker'
  end
  return job.company > 0 and company_on(view).jobs >= job.company and 'job' or nil
end

local function join_company(view, job)
  if job.company > 0 then
    redis.call('HSET', k_worker .. view.worker, 'apart', 1)
    view.is_apart = true
  end
  if view.company then
    view.company.jobs = view.company.jobs + 1
    view.company.most = math.min(view.company.most, job.company > 0 and job.company or math.huge)
  end
end
