-- recount: makes a tenant's sums those of its jobs again, and RQ's record of what runs that of our leases.
-- KEYS config leases lists order active tenant books rq_job rq_wip
-- ARGV
--   tenant text · whose sums
--   slug text · a pool whose running jobs are counted too, whether the tenant waits for it or not
--   thorough int · 1 to look at every job although the lists are as long as the sums say
-- ANSWERS recounted
--   recounted: repairs made
-- KEEPS 1 2 3 8
-- USES clock afford job stats forget rq books

-- The one script that may look at more than 64 entries: a sum of half a list is no sum. Few fields of each are
-- read, and it goes on only where the books may be wrong: a claim that struck a job without a record leaves a
-- tenant with more waiting than its lists hold.
local MOST = 1024
local FIELDS = { 'penstock_state', 'penstock_tenant', 'penstock_prompt_tokens', 'penstock_max_tokens', 'penstock_cost_mwt',
  'penstock_slug', 'penstock_claim', 'status' }
local true_sums = { waiting = 0, waiting_tokens = 0, waiting_mwt = 0, running = 0 }
local whole_picture, repairs = true, 0

local slugs, listed = redis.call('SMEMBERS', k_lists .. tenant), 0
for i = 1, #slugs do
  listed = listed + redis.call('ZCARD', k_order .. tenant .. '.' .. slugs[i])
end
-- A weight that was changed while its tenant waits, or was lost with the tenant's record, counts from here on.
local policy = redis.call('HMGET', k_tenant .. tenant, 'policy', 'policy_weight_milli')
for i = 1, #slugs do
  local counted, weight_milli = redis.call('HGET', k_tenant .. tenant, 'w|' .. slugs[i]), weight_in(policy[2])
  if tonumber(counted or 0) ~= weight_milli then
    redis.call('HSET', k_tenant .. tenant, 'w|' .. slugs[i], weight_milli)
    -- Of a record that is gone the pool's sum still holds the weight; which it was, nobody knows: most have 1.
    book(slugs[i], 'weight_milli', weight_milli - (tonumber(counted) or 1000))
    repairs = repairs + 1
  end
end
-- What it was served still stands in the turns.
local stands_at = #slugs > 0 and redis.call('ZSCORE', k_active .. slugs[1], tenant)
if stands_at and redis.call('HSETNX', k_tenant .. tenant, 'service_mwt', string.format('%.0f', stands_at)) == 1 then
  repairs = repairs + 1
end

-- A record that was removed came back without a TTL, with the first sum that was written into it.
local function outlive_no_job()
  if not policy[1] and redis.call('TTL', k_tenant .. tenant) == -1 then
    redis.call('EXPIRE', k_tenant .. tenant, tonumber(redis.call('HGET', k_config, 'result_ttl_s') or 3600) + 86400 + 3600)
  end
end

if thorough == 0 and listed == tonumber(redis.call('HGET', k_tenant .. tenant, 'waiting') or 0) then
  outlive_no_job()
  return { 'recounted', repairs }
end

for i = 1, #slugs do
  local ids = redis.call('ZRANGE', k_order .. tenant .. '.' .. slugs[i], 0, MOST)
  whole_picture = whole_picture and #ids <= MOST
  local own = 'b|' .. slugs[i]
  true_sums[own] = 0
  for j = 1, #ids do
    local job = redis.pcall('HMGET', k_rq_job .. ids[j], unpack(FIELDS))
    if job[1] == 'queued' then
      true_sums[own] = true_sums[own] + (tonumber(job[5]) or 0)
      true_sums.waiting = true_sums.waiting + 1
      true_sums.waiting_tokens = true_sums.waiting_tokens + (tonumber(job[3]) or 0) + (tonumber(job[4]) or 0)
      true_sums.waiting_mwt = true_sums.waiting_mwt + (tonumber(job[5]) or 0)
    end
  end
end

-- RQ's record of a running job, should somebody have changed it.
local function make_agree(id, job)
  local queue = tenant .. '.' .. job[6]
  if job[8] ~= 'started' or not redis.call('ZSCORE', k_rq_wip .. queue, id .. ':' .. job[7]) then
    redis.call('HSET', k_rq_job .. id, 'status', 'started')
    rq_start(queue, id, job[7], now_ms)
    repairs = repairs + 1
  end
end

local running, running_of = redis.call('ZRANGE', k_leases, 0, MOST), { [slug] = 0 }
whole_picture = whole_picture and #running <= MOST
for i = 1, #slugs do
  running_of[slugs[i]] = 0
end
for i = 1, #running do
  local job = redis.pcall('HMGET', k_rq_job .. running[i], unpack(FIELDS))
  if job[1] == 'running' and job[6] then
    running_of[job[6]] = (running_of[job[6]] or 0) + 1
  end
  if job[1] == 'running' and job[2] == tenant and job[6] and job[7] then
    true_sums.running = true_sums.running + 1
    make_agree(running[i], job)
  elseif job[1] ~= 'running' and not read_job(running[i]) then
    forget(running[i])
  end
end

if whole_picture then
  -- A pool that seems to run more than it does never counts as idle.
  for pool, jobs in pairs(running_of) do
    if tonumber(redis.call('HGET', k_books .. pool, 'running') or 0) ~= jobs then
      redis.call('HSET', k_books .. pool, 'running', jobs)
      repairs = repairs + 1
    end
  end
  for name, value in pairs(true_sums) do
    local held = redis.call('HGET', k_tenant .. tenant, name)
    local before = tonumber(held or 0)
    if before ~= value then
      redis.call('HSET', k_tenant .. tenant, name, value)
      repairs = repairs + 1
      -- The pool's sum is that of its tenants'; of a record that is gone it still holds what waited.
      local pool = string.match(name, '^b|(.+)$')
      if pool and held then
        book(pool, 'waiting_mwt', value - (before or 0))
      end
    end
  end
end
outlive_no_job()
return { 'recounted', repairs }
