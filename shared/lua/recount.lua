-- recount: recomputes a tenant's sums from its jobs, and repairs RQ's record of the tenant's running jobs.
-- KEYS leases lists order tenant books rows rq_job rq_wip kept
-- ARGV
--   tenant text · the tenant
--   slug text · a pool whose running jobs are counted even if the tenant has no queued jobs in it
--   thorough int · 1 to examine every job even if the queues are as long as the tenant's record says
-- ANSWERS recounted
--   recounted: number of repairs
-- KEEPS 1 2 3 8
-- USES clock settings oom_write mark job_record forget rq pool_record turns service priority tenant_bytes budget
-- USES index

-- This script may examine more than 64 entries, because a sum over half of a queue is useless. It reads few fields of
-- each job, and it examines the jobs only if the sums may be wrong. For example, when claim removes an id without a
-- record from a queue, the tenant's sums still count that job.
local MAX_EXAMINED = 1024
local FIELDS = { 'penstock_state', 'penstock_tenant', 'penstock_prompt_tokens', 'penstock_max_tokens',
  'penstock_cost_mwt', 'penstock_slug', 'penstock_claim', 'status', 'penstock_bytes', 'penstock_group',
  'penstock_paused_since_ms', 'penstock_priority' }
-- The fields of a pool's record that sum up fields of its tenants' records.
local POOL_SUMS = { n = 'waiting', b = 'waiting_mwt', bb = 'batch_mwt' }
local true_live_bytes = 0
local true_sums = { waiting = 0, waiting_tokens = 0, waiting_mwt = 0, running = 0, paused = 0 }
local is_complete, repairs = true, 0

local slugs, listed_jobs = {}, 0
for _, pool in ipairs(redis.call('SMEMBERS', k_lists .. tenant)) do
  -- A tenant that enters a pool's set gets a weight there. Without a weight and a job, another program added the pool.
  if turns.wants_slots(tenant, pool) or redis.call('HEXISTS', k_tenant .. tenant, 'w|' .. pool) == 1 then
    slugs[#slugs + 1] = pool
    listed_jobs = listed_jobs + redis.call('ZCARD', k_order .. tenant .. '.' .. pool)
  else
    repairs = repairs + redis.call('SREM', k_lists .. tenant, pool)
  end
end
-- Apply the tenant's group and weight again if they were changed while the tenant had queued jobs, or were lost with
-- its record. If its service was lost, restore it.
local policy = read_fields(k_tenant .. tenant, { 'policy', 'policy_weight_milli', 'policy_group' })
for i = 1, #slugs do
  local own = read_fields(k_tenant .. tenant, { 'w|' .. slugs[i], 's|' .. slugs[i], 'g|' .. slugs[i] })
  local group, weight_milli = service.group_named(policy.policy_group),
    pool_record.weight_in(policy.policy_weight_milli)
  if not own['s|' .. slugs[i]] then
    redis.call('HSET', k_tenant .. tenant, 's|' .. slugs[i],
      whole(service.unrecorded_service(tenant, slugs[i], service.group_in(own['g|' .. slugs[i]]))))
    repairs = repairs + 1
  end
  if number(own['w|' .. slugs[i]]) ~= weight_milli then
    redis.call('HSET', k_tenant .. tenant, 'w|' .. slugs[i], weight_milli)
    -- If the tenant's record was deleted, the pool's sum of weights still contains the tenant's old weight. The old
    -- weight is unknown, so it is assumed to be 1, the weight of most tenants.
    if service.group_in(own['g|' .. slugs[i]]) == '' then
      turns.add_weight(slugs[i], priority.has_only_batch(tenant, slugs[i]), weight_milli - number(own['w|'
        .. slugs[i]], 1000))
    end
    repairs = repairs + 1
  end
  if service.group_in(own['g|' .. slugs[i]]) ~= group then
    turns.regroup(tenant, slugs[i], group)
    repairs = repairs + 1
  elseif (own['g|' .. slugs[i]] or '') ~= group then
    turns.join(tenant, slugs[i], group)
    repairs = repairs + 1
  end
  if group ~= '' then
    local of_group = read_fields(k_tenant .. group, { 'w|' .. slugs[i], 'policy_weight_milli' })
    local counted_milli, group_milli = number(of_group['w|' .. slugs[i]], 0, 0),
      pool_record.weight_in(of_group.policy_weight_milli)
    if counted_milli ~= group_milli then
      redis.call('HSET', k_tenant .. group, 'w|' .. slugs[i], group_milli)
      turns.add_weight(slugs[i], priority.has_only_batch(group, slugs[i]), group_milli - counted_milli)
      repairs = repairs + 1
    end
  end
end

-- Makes the numbers of computing and paused jobs of a pool's tenants and groups agree with `rows`. Returns the repairs.
local function correct_rows(pool, rows)
  local stored, made = redis.call('HGETALL', k_rows .. pool), 0
  for i = 1, #stored, 2 do
    if not rows[stored[i]] then
      redis.call('HDEL', k_rows .. pool, stored[i])
      made = made + 1
    end
  end
  for field, jobs in pairs(rows) do
    if number(redis.call('HGET', k_rows .. pool, field)) ~= jobs then
      redis.call('HSET', k_rows .. pool, field, jobs)
      made = made + 1
    end
  end
  return made
end

-- Gives the tenant's record a TTL if it has neither a TTL nor a policy. If the record was deleted, the next script that
-- writes a sum into the record creates it again without a TTL.
local function restore_ttl()
  if not policy.policy and redis.call('TTL', k_tenant .. tenant) == -1 then
    redis.call('EXPIRE', k_tenant .. tenant, settings.read_setting('result_ttl_s') + 86400 + 3600)
  end
end

repairs = repairs + tenant_bytes.recount_ended(tenant)
if thorough == 0 and listed_jobs == number(redis.call('HGET', k_tenant .. tenant, 'waiting'), 0) then
  restore_ttl()
  return { 'recounted', repairs }
end

for i = 1, #slugs do
  local ids = redis.call('ZRANGE', k_order .. tenant .. '.' .. slugs[i], 0, MAX_EXAMINED)
  is_complete = is_complete and #ids <= MAX_EXAMINED
  local own, number_here, tokens_here = 'b|' .. slugs[i], 'n|' .. slugs[i], 't|' .. slugs[i]
  local batch_here, batch_mwt_here = 'bn|' .. slugs[i], 'bb|' .. slugs[i]
  true_sums[own], true_sums[number_here], true_sums[tokens_here] = 0, 0, 0
  true_sums[batch_here], true_sums[batch_mwt_here] = 0, 0
  for j = 1, #ids do
    local job = peek_fields(k_rq_job .. ids[j], FIELDS)
    if job.penstock_state == 'queued' then
      true_sums[own] = true_sums[own] + job_record.natural(job.penstock_cost_mwt)
      true_sums.waiting, true_sums[number_here] = true_sums.waiting + 1, true_sums[number_here] + 1
      true_live_bytes = true_live_bytes + tenant_bytes.kept_number(job.penstock_bytes)
      true_sums[tokens_here] = true_sums[tokens_here] + job_record.natural(job.penstock_prompt_tokens)
        + job_record.natural(job.penstock_max_tokens)
      true_sums.waiting_tokens = true_sums.waiting_tokens + job_record.natural(job.penstock_prompt_tokens)
        + job_record.natural(job.penstock_max_tokens)
      true_sums.waiting_mwt = true_sums.waiting_mwt + job_record.natural(job.penstock_cost_mwt)
      if priority.priority_in(job.penstock_priority) == -1 then
        true_sums[batch_here] = true_sums[batch_here] + 1
        true_sums[batch_mwt_here] = true_sums[batch_mwt_here] + job_record.natural(job.penstock_cost_mwt)
      end
    end
  end
end

-- Repairs RQ's record of a running job if another program changed it.
local function make_agree(id, job)
  local queue = tenant .. '.' .. job.penstock_slug
  if job.status ~= 'started' or not redis.call('ZSCORE', k_rq_wip .. queue, id .. ':' .. job.penstock_claim) then
    redis.call('HSET', k_rq_job .. id, 'status', 'started')
    rq.rq_start(queue, id, job.penstock_claim, now_ms)
    repairs = repairs + 1
  end
end

local function no_figures()
  return { running = 0, paused = 0, running_mwt = 0, running_tokens = 0, rows = {} }
end

local running, pools = redis.call('ZRANGE', k_leases, 0, MAX_EXAMINED), { [slug] = no_figures() }
is_complete = is_complete and #running <= MAX_EXAMINED
for i = 1, #slugs do
  pools[slugs[i]] = no_figures()
end

-- Adds a running job to the figures of its pool.
local function count_in_pool(job)
  local pool = pools[job.penstock_slug] or no_figures()
  local is_paused, group = job_record.natural(job.penstock_paused_since_ms) > 0, service.group_in(job.penstock_group)
  pools[job.penstock_slug], pool.running = pool, pool.running + 1
  pool.paused = pool.paused + (is_paused and 1 or 0)
  pool.running_mwt = pool.running_mwt + job_record.natural(job.penstock_cost_mwt)
  pool.running_tokens = pool.running_tokens + (is_paused and 0 or job_record.natural(job.penstock_prompt_tokens)
    + job_record.natural(job.penstock_max_tokens))
  for _, owner in ipairs({ job.penstock_tenant, not is_paused and group ~= '' and group or nil }) do
    for _, of_batch in ipairs({ '', priority.priority_in(job.penstock_priority) == -1 and 'b' or nil }) do
      local field = (is_paused and 'p' or 'c') .. of_batch .. '|' .. owner
      pool.rows[field] = (pool.rows[field] or 0) + 1
    end
  end
end

for i = 1, #running do
  local job = peek_fields(k_rq_job .. running[i], FIELDS)
  if job.penstock_state == 'running' and job.penstock_tenant and job.penstock_slug then
    count_in_pool(job)
  end
  if job.penstock_state == 'running' and job.penstock_tenant == tenant and job.penstock_slug and job.penstock_claim then
    true_sums.running = true_sums.running + 1
    true_sums.paused = true_sums.paused + (job_record.natural(job.penstock_paused_since_ms) > 0 and 1 or 0)
    true_live_bytes = true_live_bytes + tenant_bytes.kept_number(job.penstock_bytes)
    make_agree(running[i], job)
  elseif job.penstock_state ~= 'running' and not job_record.read_job(running[i]) then
    forget.forget_job(running[i])
  end
end

if is_complete then
  if tenant_bytes.open_kept(tenant, { 'live' }).live ~= true_live_bytes then
    redis.call('HSET', k_kept .. tenant, 'live', whole(true_live_bytes))
    -- The count is deleted with the last result. Until then, each admission and each end extends its life.
    index.keep_key(k_kept .. tenant, 86400000)
    repairs = repairs + 1
  end
  -- Correct each pool's counts of its running jobs: a pool whose number is too high is never considered idle.
  for pool, figures in pairs(pools) do
    for _, name in ipairs({ 'running', 'paused', 'running_mwt', 'running_tokens' }) do
      if number(redis.call('HGET', k_books .. pool, name) or '0') ~= figures[name] then
        redis.call('HSET', k_books .. pool, name, figures[name])
        repairs = repairs + 1
      end
    end
    repairs = repairs + correct_rows(pool, figures.rows)
  end
  for name, value in pairs(true_sums) do
    local held = redis.call('HGET', k_tenant .. tenant, name)
    local before = number(held or '0')
    if before ~= value then
      redis.call('HSET', k_tenant .. tenant, name, whole(value))
      repairs = repairs + 1
      -- The pool's sum is the sum over its tenants. If the tenant's record was deleted, the pool's sum still contains
      -- the tenant's part, so the pool's sum is not changed.
      local kind, pool = string.match(name, '^(%l+)|(.+)$')
      if held and POOL_SUMS[kind] then
        pool_record.book(pool, POOL_SUMS[kind], value - (before or 0))
      end
    end
  end
end
repairs = repairs + budget.recount_reserved(tenant, service.group_named(policy.policy_group))
restore_ttl()
return { 'recounted', repairs }
