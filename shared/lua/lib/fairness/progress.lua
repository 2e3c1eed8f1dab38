-- progress: charges tenants for their jobs while these run.
-- KEYS active tenant rq_job
-- KEEPS 3 7
-- USES clock generated_weight service

-- Charges the job's cost so far to the tenant, and to the group in which it was claimed. Without preemption, it charges
-- only the part above the estimate that was charged at the claim. A charge that turns out too high is refunded only
-- when the job ends.
local function charge_progress(job, generated_tokens, cpu_tokens, charges_all)
  local cost_mwt = generated_weight.cost_of(job, job.prompt_tokens + cpu_tokens, generated_tokens)
  if not charges_all and cost_mwt <= job.cost_mwt or service.by_weight(job.tenant, cost_mwt) <= job.charged_mwt then
    return
  end
  service.charge(job, cost_mwt)
  redis.call('HSET', k_rq_job .. job.id, 'penstock_charged_mwt', whole(job.charged_mwt))
  if job.group ~= '' then
    redis.call('HSET', k_rq_job .. job.id, 'penstock_group_charged_mwt', whole(job.group_charged_mwt))
  end
end

-- Raises the virtual time of a pool's set, and of the sets of the groups whose jobs run, to the service of the owners
-- that are served now: the least service in the set or, if nobody wants slots, the highest of those whose jobs run.
-- With preemption, a long answer is charged without any turn. A newcomer would otherwise start as far behind as the
-- answer is long, and be served before all others until it has caught up.
local function follow_service(slug, jobs)
  local owners_of = { [''] = {} }
  for i = 1, #jobs do
    local tenant, group = jobs[i].tenant, jobs[i].group
    owners_of[''][group ~= '' and group or tenant] = true
    if group ~= '' then
      owners_of[group] = owners_of[group] or {}
      owners_of[group][tenant] = true
    end
  end
  for group, owners in pairs(owners_of) do
    local level = number(redis.call('ZRANGE', k_active .. slug .. group, 0, 0, 'WITHSCORES')[2], nil,
      service.MIN_SERVICE_MWT)
    if not level then
      level = -1
      for owner in pairs(owners) do
        level = math.max(level, number(redis.call('HGET', k_tenant .. owner, 's|' .. slug), -1, 0))
      end
    end
    service.raise_virtual_time(slug, group, level)
  end
end
