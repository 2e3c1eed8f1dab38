-- sweep: examines the oldest inflight jobs, and puts those back that stand where no other script would end them.
-- KEYS config inflight deadlines leases polls workers worker tenants models queues notices wake pool bell patrol
--      promises webhook webhooks webhook_due webhook_turns webhook_secrets rq_queues rq_workers rq_worker rq_workers_of
--      groups tenant pools routes admin_actions
-- ARGV
--   asker text · the process that sweeps, '' for a process that sweeps although another one has the turn
--   source text · the set to examine: inflight, deadlines or leases
--   start int · the first rank to examine, from 0
--   settings rest · the caller's system-wide settings: name, value, …; they replace missing or spoiled ones
-- ANSWERS swept
--   swept: number of repairs; the next rank to examine, or -1 at the end; 1 if the sets of queued and of running jobs
--   hold together as many jobs as the inflight set, else 0; the active sets of the examined jobs, as `<slug>` and
--   `<slug>@<group>`; the mends that no process has logged yet. A process that does not have the turn gets the answer
--   for an empty store
-- KEEPS 1 2 7 13
-- USES clock settings oom_write mark schema repair mend_place stats slug webhook index

-- Every other script finds a job through the set of its state: by its deadline, its lease, its place in the queue or
-- its turn. A job that stands in none of these sets never ends. This script starts from the set of all inflight jobs
-- and trusts only the job's own record. The set of inflight jobs itself is rebuilt from the other two.
if schema.is_outdated(redis.call('HGET', k_config, 'schema_oldest')) then
  return { 'swept', 0, -1, 1, {}, {} }
end

-- Examining 64 jobs takes the store a few milliseconds, which hundreds of processes must not all spend. So one process
-- has the turn to sweep. It keeps the turn as long as it asks again within this time.
local TURN_MS = 10000
if asker ~= '' then
  local turn = read_fields(k_patrol, { 'sweeper', 'sweeper_until_ms' })
  if turn.sweeper and turn.sweeper ~= asker and number(turn.sweeper_until_ms, 0, 0, now_ms + TURN_MS) > now_ms then
    return { 'swept', 0, -1, 1, {}, {} }
  end
  redis.call('HSET', k_patrol, 'sweeper', asker, 'sweeper_until_ms', now_ms + TURN_MS)
  redis.call('PEXPIRE', k_patrol, 3600000)
end
local WINDOW = 64
local sets, seen, done = {}, {}, {}

-- Each of these commands is without effect if the key has its type, and otherwise moves the value out of the way.
-- Programs that read these keys directly would fail on it.
local function check_types()
  for _, key in ipairs({ k_inflight, k_deadlines, k_leases, k_polls, k_workers, k_tenants, k_models, k_queues }) do
    redis.call('ZCARD', key)
  end
  for _, key in ipairs({ k_rq_queues, k_rq_workers, k_groups, k_pools }) do
    redis.call('SCARD', key)
  end
  for _, group in ipairs(redis.call('SRANDMEMBER', k_groups, WINDOW)) do
    redis.call('HLEN', k_tenant .. '@' .. group)
  end
  redis.call('HLEN', k_routes)
  redis.call('XLEN', k_admin_actions)
  for _, name in ipairs(redis.call('ZREVRANGE', k_workers, 0, WINDOW - 1)) do
    local slug = redis.call('HGET', k_worker .. name, 'slug')
    redis.call('LLEN', k_bell .. name)
    redis.call('HLEN', k_rq_worker .. name)
    if slug and not done[slug] then
      done[slug] = true
      redis.call('LLEN', k_wake .. slug)
      redis.call('ZCARD', k_pool .. slug)
    end
  end
end

-- Sets the scores between two times, which no script has written, to the present time.
local function correct_scores(key, from, to)
  for _, name in ipairs(redis.call('ZRANGEBYSCORE', key, from, to, 'LIMIT', 0, WINDOW)) do
    redis.call('ZADD', key, now_ms, name)
    repair.note_repairs(1)
  end
end

-- A worker whose last heartbeat lies in the future would stay live for ever; a model and a tenant that were heard of in
-- the future would stay listed. A pause of reaping that ends more than one lease in the future was not started by a
-- script.
local function check_times()
  local until_ms = redis.call('HGET', k_config, 'hold_until_ms')
  if until_ms and not number(until_ms, nil, 0, now_ms + settings.read_setting('lease_ms')) then
    redis.call('HDEL', k_config, 'hold_until_ms', 'hold_beat_ms')
    repair.note_repairs(1)
  end
  for _, key in ipairs({ k_workers, k_models, k_tenants }) do
    correct_scores(key, now_ms + LIVE_MS, '+inf')
  end
  -- The reaper makes the score of a tenant with a policy negative.
  correct_scores(k_tenants, '-inf', '(-' .. digits(now_ms))
  for _, model in ipairs(redis.call('ZREVRANGE', k_models, 0, WINDOW - 1)) do
    -- Doors with format 1 write this key until they are stopped, and nothing else would delete it.
    redis.call('DEL', k_promises .. slug.slug_of(model))
    -- A live worker that is removed from its pool here is added again by its next heartbeat.
    repair.note_repairs(redis.call('ZREMRANGEBYSCORE', k_pool .. slug.slug_of(model), '(' .. digits(now_ms + LIVE_MS),
      '+inf'))
  end
end

local function restore_settings()
  for i = settings, #ARGV, 2 do
    local stored = redis.call('HGET', k_config, ARGV[i])
    local checked = stored and settings.checked_setting(ARGV[i], stored)
    local is_good = stored and (stored == 'auto' or checked == stored or checked and checked == tonumber(stored))
    if not is_good then
      settings.write_setting(ARGV[i], ARGV[i + 1])
      note_mend('setting', k_config .. ' ' .. ARGV[i])
      repair.note_repairs(1)
    end
  end
end

-- Every webhook is due at some time, and its tenant has a turn by then. Those to examine are chosen at random, because
-- a receiver that is away leaves thousands.
local function check_webhooks()
  redis.call('ZCARD', k_webhooks)
  redis.call('HLEN', k_webhook_secrets)
  correct_scores(k_webhook_turns, now_ms + webhook.LONGEST_WAIT_MS, '+inf')
  correct_scores(k_webhooks, '(' .. digits(now_ms), '+inf')
  correct_scores(k_webhooks, '-inf', '(' .. digits(now_ms - webhook.TOLD_FOR_MS - webhook.MARGIN_MS))
  for _, id in ipairs(redis.call('ZRANDMEMBER', k_webhooks, WINDOW)) do
    local tenant = redis.call('HGET', k_webhook .. id, 'tenant')
    if not tenant or not string.find(tenant, '^[%w_-]+$') then
      redis.call('ZREM', k_webhooks, id)
      redis.call('DEL', k_webhook .. id)
      repair.note_repairs(1)
    else
      local due_ms = redis.call('ZSCORE', k_webhook_due .. tenant, id)
      if not due_ms or not number(due_ms, nil, 0, now_ms + webhook.LONGEST_WAIT_MS)
        or not redis.call('ZSCORE', k_webhook_turns, tenant) then
        webhook.make_due(tenant, id, now_ms)
        repair.note_repairs(1)
      end
    end
  end
end

if start == 0 and source == 'inflight' then
  check_types()
  check_times()
  check_webhooks()
  restore_settings()
  index.trim_recent()
end

local key = source == 'deadlines' and k_deadlines or source == 'leases' and k_leases or k_inflight
local ids, removed = redis.call('ZRANGE', key, start, start + WINDOW - 1), 0
for i = 1, #ids do
  local made_before, job = repair.repairs.made, mend_place.place(ids[i])
  if job and not seen[job.queue] then
    seen[job.queue] = true
    local group = mend_place.ensure_active(job)
    redis.call('SCARD', k_rq_workers_of .. job.queue)
    for _, set in ipairs({ job.slug, job.slug .. group }) do
      if not seen['set ' .. set] then
        seen['set ' .. set] = true
        sets[#sets + 1] = set
      end
    end
  end
  if repair.repairs.made > made_before then
    stats.count('reconciled', repair.repairs.made - made_before)
    removed = removed + (redis.call('ZSCORE', key, ids[i]) and 0 or 1)
  end
end
local agree = redis.call('ZCARD', k_inflight) == redis.call('ZCARD', k_deadlines) + redis.call('ZCARD', k_leases)
local notices = redis.call('LRANGE', k_notices, 0, -1)
if #notices > 0 then
  redis.call('DEL', k_notices)
end
return { 'swept', repair.repairs.made, #ids == WINDOW and start + WINDOW - removed or -1, agree and 1 or 0, sets,
  notices }
