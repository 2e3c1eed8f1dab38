-- recount: recomputes a tenant's sums from its jobs, and repairs RQ's record of the tenant's running jobs.
-- KEYS leases lists order tenant books rows rq_job rq_wip kept
-- ARGV
--   tenant text · the tenant
--   slug text · a pool whose running jobs are counted even if the tenant has no queued jobs in it
--   thorough int · 1 to examine every job even if the queues are as long as the tenant's record says
-- ANSWERS recounted
--   recounted: number of repairs
-- KEEPS 1 2 3 8
-- USES clock settings oom_write mark repair job_record forget rq pool_record turns service priority tenant_bytes budget
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
local true_live_bytes, is_complete = 0, true
local true_sums = { waiting = 0, waiting_tokens = 0, waiting_mwt = 0, running = 0, paused = 0 }

local slugs, listed_jobs = {}, 0
for _, pool in ipairs(redis.call('SMEMBERS', k_lists .. tenant)) do
  -- A tenant that enters a pool's set gets a weight there. Without a weight and a job, another program added the pool.
  if turns.wants_slots(tenant, pool) or redis.call('HEXISTS', k_tenant .. tenant, 'w|' .. pool) == 1 then
    slugs[#slugs + 1] = pool
    listed_jobs = listed_jobs + redis.call('ZCARD', k_order .. tenant .. '.' .. pool)
  else
    repair.note_repairs(redis.call('SREM', k_lists .. tenant, pool))
  end
end
-- Apply the tenant's group and weight again if they were changed while the tenant had queued jobs, or were lost with
-- its record. If its service was lost, restore it.
local policy = read_fields(k_tenant .. tenant, { 'policy', 'policy_weight_milli', 'policy_group' })
local group, weight_milli = service.group_named(policy.policy_group), pool_record.weight_in(policy.policy_weight_milli)
for _, pool in ipairs(slugs) do
  local own = read_fields(k_tenant .. tenant, { 'w|' .. pool, 's|' .. pool, 'g|' .. pool })
  local group_before = service.group_in(own['g|' .. pool])
  if not own['s|' .. pool] then
    redis.call('HSET', k_tenant .. tenant, 's|' .. pool, whole(service.unrecorded_service(tenant, pool, group_before)))
    repair.note_repairs(1)
  end
  if number(own['w|' .. pool]) ~= weight_milli then
    redis.call('HSET', k_tenant .. tenant, 'w|' .. pool, weight_milli)
    -- If the tenant's record was deleted, the pool's sum of weights still contains the tenant's old weight. The old
    -- weight is unknown, so it is assumed to be 1, the weight of most tenants.
    if group_before == '' then
      turns.add_weight(pool, priority.has_only_batch(tenant, pool), weight_milli - number(own['w|' .. pool], 1000))
    end
    repair.note_repairs(1)
  end
  if group_before ~= group then
    turns.regroup(tenant, pool, group)
    repair.note_repairs(1)
  elseif (own['g|' .. pool] or '') ~= group then
    turns.join(tenant, pool, group)
    repair.note_repairs(1)
  end
  if group ~= '' then
    local of_group = read_fields(k_tenant .. group, { 'w|' .. pool, 'policy_weight_milli' })
    local counted_milli, group_milli = number(of_group['w|' .. pool], 0, 0),
      pool_record.weight_in(of_group.policy_weight_milli)
    if counted_milli ~= group_milli then
      redis.call('HSET', k_tenant .. group, 'w|' .. pool, group_milli)
      turns.add_weight(pool, priority.has_only_batch(group, pool), group_milli - counted_milli)
      repair.note_repairs(1)
    end
  end
end

-- Gives the tenant's record a TTL if it has neither a TTL nor a policy. If the record was deleted, the next script that
-- writes a sum into the record creates it again without a TTL.
local function restore_ttl()
  if not policy.policy and redis.call('TTL', k_tenant .. tenant) == -1 then
    redis.call('EXPIRE', k_tenant .. tenant, settings.read_setting('result_ttl_s') + 86400 + 3600)
  end
end

repair.note_repairs(tenant_bytes.recount_ended(tenant))
if thorough == 0 and listed_jobs == number(redis.call('HGET', k_tenant .. tenant, 'waiting'), 0) then
  restore_ttl()
  return { 'recounted', repair.repairs.made }
end

-- Returns a job's tokens and cost, and whether it is a batch job.
local function size_of(job)
  return job_record.natural(job.penstock_prompt_tokens) + job_record.natural(job.penstock_max_tokens),
    job_record.natural(job.penstock_cost_mwt), priority.priority_in(job.penstock_priority) == -1
end

for _, pool in ipairs(slugs) do
  local ids, sums = redis.call('ZRANGE', k_order .. tenant .. '.' .. pool, 0, MAX_EXAMINED), { n = 0, t = 0, b = 0,
    bn = 0, bb = 0 }
  is_complete = is_complete and #ids <= MAX_EXAMINED
  for _, id in ipairs(ids) do
    local job = peek_fields(k_rq_job .. id, FIELDS)
    if job.penstock_state == 'queued' then
      local tokens, cost_mwt, is_batch = size_of(job)
      true_live_bytes = true_live_bytes + tenant_bytes.kept_number(job.penstock_bytes)
      sums.n, sums.t, sums.b = sums.n + 1, sums.t + tokens, sums.b + cost_mwt
      sums.bn, sums.bb = sums.bn + (is_batch and 1 or 0), sums.bb + (is_batch and cost_mwt or 0)
    end
  end
  true_sums.waiting, true_sums.waiting_tokens = true_sums.waiting + sums.n, true_sums.waiting_tokens + sums.t
  true_sums.waiting_mwt = true_sums.waiting_mwt + sums.b
  for kind, sum in pairs(sums) do
    true_sums[kind .. '|' .. pool] = sum
  end
end

-- Repairs RQ's record of a running job if another program changed it.
local function make_agree(id, job)
  local queue = tenant .. '.' .. job.penstock_slug
  if job.status ~= 'started' or not redis.call('ZSCORE', k_rq_wip .. queue, id .. ':' .. job.penstock_claim) then
    redis.call('HSET', k_rq_job .. id, 'status', 'started')
    rq.rq_start(queue, id, job.penstock_claim, now_ms)
    repair.note_repairs(1)
  end
end

-- Returns figures of a pool's running jobs, and the numbers of computing and paused jobs of its tenants and groups.
local function no_figures()
  return { sums = { running = 0, paused = 0, running_mwt = 0, running_tokens = 0 }, rows = {} }
end

local running, pools = redis.call('ZRANGE', k_leases, 0, MAX_EXAMINED), { [slug] = no_figures() }
is_complete = is_complete and #running <= MAX_EXAMINED
for _, pool in ipairs(slugs) do
  pools[pool] = no_figures()
end

local function count_in_pool(job)
  local pool = pools[job.penstock_slug] or no_figures()
  pools[job.penstock_slug] = pool
  local sums, tokens, cost_mwt, is_batch = pool.sums, size_of(job)
  local is_paused, group = job_record.natural(job.penstock_paused_since_ms) > 0, service.group_in(job.penstock_group)
  sums.running, sums.paused = sums.running + 1, sums.paused + (is_paused and 1 or 0)
  sums.running_mwt = sums.running_mwt + cost_mwt
  sums.running_tokens = sums.running_tokens + (is_paused and 0 or tokens)
  for _, owner in ipairs({ job.penstock_tenant, not is_paused and group ~= '' and group or nil }) do
    for _, of_batch in ipairs({ '', is_batch and 'b' or nil }) do
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
    repair.note_repairs(1)
  end
  -- Correct each pool's counts of its running jobs: a pool whose number is too high is never considered idle.
  for pool, figures in pairs(pools) do
    repair.correct_fields(k_books .. pool, figures.sums)
    repair.correct_fields(k_rows .. pool, figures.rows)
    for _, field in ipairs(redis.call('HKEYS', k_rows .. pool)) do
      if not figures.rows[field] then
        repair.note_repairs(redis.call('HDEL', k_rows .. pool, field))
      end
    end
  end
  for name, value in pairs(true_sums) do
    local held = redis.call('HGET', k_tenant .. tenant, name)
    local before = number(held or '0')
    if before ~= value then
      redis.call('HSET', k_tenant .. tenant, name, whole(value))
      repair.note_repairs(1)
      -- The pool's sum is the sum over its tenants. If the tenant's record was deleted, the pool's sum still contains
      -- the tenant's part, so the pool's sum is not changed.
      local kind, pool = string.match(name, '^(%l+)|(.+)$')
      if held and POOL_SUMS[kind] then
        pool_record.book(pool, POOL_SUMS[kind], value - (before or 0))
      end
    end
  end
end
repair.note_repairs(budget.recount_reserved(tenant, group))
restore_ttl()
return { 'recounted', repair.repairs.made }
