-- recount: makes a tenant's sums those of its jobs again, and takes running ids without a record off the books.
-- KEYS leases lists order tenant
-- ARGV
--   tenant text · whose sums
-- ANSWERS recounted
--   recounted: 1 when a sum was wrong
-- KEEPS 1 2 3 8
-- USES clock afford job stats forget rq

-- The one script that may look at more than 64 entries: a sum of half a list is no sum. It runs for tenants
-- whose books were found wrong; their lists are as long as their bounds.
local MOST = 1024
local true_sums = { waiting = 0, waiting_tokens = 0, waiting_mwt = 0, running = 0 }
local whole_picture = true

local slugs = redis.call('SMEMBERS', k_lists .. tenant)
for i = 1, #slugs do
  local ids = redis.call('ZRANGE', k_order .. tenant .. '.' .. slugs[i], 0, MOST)
  whole_picture = whole_picture and #ids <= MOST
  for j = 1, #ids do
    local job = read_job(ids[j])
    if job and job.state == 'queued' then
      true_sums.waiting = true_sums.waiting + 1
      true_sums.waiting_tokens = true_sums.waiting_tokens + job.prompt_tokens + job.max_tokens
      true_sums.waiting_mwt = true_sums.waiting_mwt + job.cost_mwt
    end
  end
end
local running = redis.call('ZRANGE', k_leases, 0, MOST)
whole_picture = whole_picture and #running <= MOST
for i = 1, #running do
  local job = read_job(running[i])
  if not job then
    forget(running[i])
  elseif job.tenant == tenant and job.state == 'running' then
    true_sums.running = true_sums.running + 1
  end
end

local wrong = 0
if whole_picture then
  for name, value in pairs(true_sums) do
    if tonumber(redis.call('HGET', k_tenant .. tenant, name) or 0) ~= value then
      redis.call('HSET', k_tenant .. tenant, name, value)
      wrong = 1
    end
  end
end
return { 'recounted', wrong }
