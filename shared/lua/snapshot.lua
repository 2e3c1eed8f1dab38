-- snapshot: returns one consistent view of the whole system; writes nothing.
-- KEYS config inflight deadlines leases tenants tenant stats workers worker models pool order lists rq_job books
-- ARGV
--   limit int · the largest number of tenants to return, at most 64; those with the latest admissions come first
--   worker_limit int · the largest number of workers to return, at most 64; each pool gets an equal part of them
--   with_stats int · 1 to return all counters and histogram buckets; there may be more than ten thousand
-- ANSWERS snapshot
--   snapshot: now in ms; numbers of inflight, queued and running jobs; config; stats; for each tenant its name, the age
--   of its oldest queued job that is not a batch job in ms (-1 for none), its fields and the slugs of its queues; for
--   each worker its name and fields; models; for each live model its name and its pool's tier (-1 if
--   PENSTOCK_DEGRADATION is off); number of live workers; the weighted tokens per second that the live pools can
--   compute; by how many ms the scripts' time is ahead of the clock of the store's machine; for each live model its
--   name, the seconds that its workers need for its queued jobs without batch jobs (-1 while their rates are unknown),
--   and its running jobs as a fraction of its slots, at most 1; for each of the 64 models that were served last its
--   name, the ms since its last heartbeat, number of live workers, why none claims jobs (`no_worker`, `draining`,
--   `load_failed`, `workers_restart` or empty), its queued jobs, running jobs and slots, the age of its oldest queued
--   job as for tenants, its two prices, and how often in a row loading it has failed, in how many ms it is tried again
--   (0: it may be tried now), and why it failed
-- KEEPS 1
-- USES clock tier slug priority worker_states loadable

-- At most this many queued jobs of a tenant are examined to find the oldest. If the tenant has more, only the jobs at
-- the front of its queues are examined.
local MAX_EXAMINED = 16
-- A worker is listed for this long after its last heartbeat, and a model for this long after that of its last worker.
local WORKER_LISTED_MS, MODEL_LISTED_MS = 60000, 3600000

-- By slug, when the oldest queued job was admitted of those that were examined, in ms.
local oldest_of = {}

-- Returns the age in ms of a tenant's oldest queued job, or -1 if it has none. Batch jobs are left out: they may wait
-- for long, and that shows nothing.
local function oldest_ms(tenant)
  local oldest_ms_seen, examined = now_ms + 1, 0
  for _, slug in ipairs(redis.call('SMEMBERS', k_lists .. tenant)) do
    if examined == MAX_EXAMINED then
      break
    end
    for _, id in ipairs(redis.call('ZRANGEBYSCORE', k_order .. tenant .. '.' .. slug, '-inf', '('
      .. digits(priority.PRIORITY_STEP), 'LIMIT', 0, MAX_EXAMINED - examined)) do
      local admitted_ms = number(redis.pcall('HGET', k_rq_job .. id, 'penstock_admitted_ms'), now_ms + 1)
      oldest_ms_seen = math.min(oldest_ms_seen, admitted_ms)
      oldest_of[slug] = math.min(oldest_of[slug] or now_ms + 1, admitted_ms)
      examined = examined + 1
    end
  end
  return now_ms - oldest_ms_seen
end

local tenants = {}
for _, name in ipairs(redis.call('ZREVRANGEBYSCORE', k_tenants, '+inf', '-inf', 'LIMIT', 0,
  math.max(0, math.min(limit, 64)))) do
  tenants[#tenants + 1] = { name, oldest_ms(name), redis.call('HGETALL', k_tenant .. name),
    redis.call('SMEMBERS', k_lists .. name) }
end

-- The workers with the latest heartbeats of each pool. Without an equal part for each pool, the workers of a large pool
-- would hide those of a small one.
local workers, is_listed = {}, {}
worker_limit = math.max(0, math.min(worker_limit, 64))
local function list_workers(names)
  for _, name in ipairs(names) do
    if #workers < worker_limit and not is_listed[name] then
      is_listed[name] = true
      workers[#workers + 1] = { name, redis.call('HGETALL', k_worker .. name) }
    end
  end
end
local recent_models = redis.call('ZREVRANGEBYSCORE', k_models, '+inf', now_ms - WORKER_LISTED_MS, 'LIMIT', 0, 64)
local part = math.max(1, math.floor(worker_limit / math.max(1, #recent_models)))
for _, model in ipairs(recent_models) do
  list_workers(redis.call('ZREVRANGE', k_pool .. slug.slug_of(model), 0, part - 1))
end
list_workers(redis.call('ZREVRANGE', k_workers, 0, worker_limit))

local has_tiers, live_models, capacity_wtps, loads = redis.call('HGET', k_config, 'degradation') == 'on', {}, 0, {}

local function add_live_model(model, pool_fields)
  local queued_mwt, mu_wtps = number(pool_fields.waiting_mwt, 0) - number(pool_fields.batch_mwt, 0),
    number(pool_fields.mu_wtps, 0, 0)
  capacity_wtps = capacity_wtps + number(pool_fields.mu_milli, 0) / 1000
  live_models[#live_models + 1] = model
  live_models[#live_models + 1] = has_tiers and tier.tier_in_force(pool_fields.tier, pool_fields.tier_look_ms,
    queued_mwt) or -1
  local backlog_s = mu_wtps > 0 and math.max(0, queued_mwt) / 1000 / mu_wtps or -1
  local busy_ratio = math.min(1, number(pool_fields.running, 0, 0) / math.max(1, number(pool_fields.slots, 0, 0)))
  loads[#loads + 1] = { model, string.format('%.17g', backlog_s), string.format('%.17g', busy_ratio) }
end

-- Returns the number of live workers of a pool, and why none of them claims jobs, or an empty text.
local function state_of(slug)
  local number_live = redis.call('ZCOUNT', k_pool .. slug, now_ms - LIVE_MS, '+inf')
  if number_live == 0 then
    return 0, 'no_worker'
  end
  local all_drain, none_lasts = worker_states.judge_workers(redis.call('ZREVRANGEBYSCORE', k_pool .. slug, '+inf',
    now_ms - LIVE_MS, 'LIMIT', 0, worker_states.MAX_JUDGED + 1))
  return number_live, all_drain and 'draining' or none_lasts and 'workers_restart' or ''
end

local pools, seen_models = {}, redis.call('ZREVRANGE', k_models, 0, 63, 'WITHSCORES')
for i = 1, #seen_models, 2 do
  local model, heartbeat_ms = seen_models[i], number(seen_models[i + 1], 0)
  local slug = slug.slug_of(model)
  local number_live, reason = state_of(slug)
  local pool_fields = read_fields(k_books .. slug, { 'tier', 'tier_look_ms', 'mu_milli', 'waiting_mwt', 'batch_mwt',
    'mu_wtps', 'running', 'slots', 'waiting', 'policy_prompt_price_micro', 'policy_answer_price_micro',
    'load_failures', 'load_retry_ms', 'load_error' })
  local load_retry_in_ms = loadable.ms_to_load_retry(pool_fields)
  if load_retry_in_ms > 0 and number_live > 0 and reason ~= 'draining' then
    reason = 'load_failed'
  end
  if number_live > 0 and heartbeat_ms >= now_ms - LIVE_MS then
    add_live_model(model, pool_fields)
  end
  pools[#pools + 1] = { model, math.max(0, math.floor(now_ms - heartbeat_ms)), number_live, reason,
    pool_fields.waiting or '', pool_fields.running or '', pool_fields.slots or '', now_ms - (oldest_of[slug] or now_ms
    + 1), pool_fields.policy_prompt_price_micro or '', pool_fields.policy_answer_price_micro or '',
    pool_fields.load_failures or '', load_retry_in_ms, pool_fields.load_error or '' }
end
return { 'snapshot', now_ms, redis.call('ZCARD', k_inflight), redis.call('ZCARD', k_deadlines),
  redis.call('ZCARD', k_leases), redis.call('HGETALL', k_config),
  with_stats == 1 and redis.call('HGETALL', k_stats) or {}, tenants, workers,
  redis.call('ZREVRANGEBYSCORE', k_models, '+inf', now_ms - MODEL_LISTED_MS, 'LIMIT', 0, 64), live_models,
  redis.call('ZCOUNT', k_workers, now_ms - LIVE_MS, '+inf'), string.format('%.17g', capacity_wtps),
  math.floor((now_us - machine_us) / 1000), loads, pools }
