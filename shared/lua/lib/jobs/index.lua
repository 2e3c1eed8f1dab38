-- index: keeps a tenant's indexes of jobs, files and batches, and the list of all tenants' newest jobs, no longer than
-- their records.
-- KEYS jobs recent_jobs rq_job
-- USES clock

-- One admission in TRIM_INDEX_ONE_IN examines this many ids at the start of the index, and as many at another place.
-- An id without a record is removed. Each admission adds one id, so ids without a record stay a small part of the
-- index. The second place matters if the oldest job has a long deadline: its record then outlives those behind it.
local EXAMINED_IDS, TRIM_INDEX_ONE_IN = 16, 8

-- Removes ids without a record from a part of an index that begins at position `first`, from 0. `records` is the prefix
-- of the records' keys.
local function trim_part(key, first, records)
  local ids = redis.call('ZRANGE', key, first, first + EXAMINED_IDS - 1)
  for i = 1, #ids do
    if redis.call('EXISTS', records .. ids[i]) == 0 then
      redis.call('ZREM', key, ids[i])
    end
  end
end

-- Removes ids without a record at the start of an index and at another place of it.
local function trim_index(key, records)
  trim_part(key, 0, records)
  trim_part(key, math.floor(now_us / TRIM_INDEX_ONE_IN) % math.max(1, redis.call('ZCARD', key)), records)
end

local function keep_key(key, ms)
  if redis.call('PTTL', key) < ms then
    redis.call('PEXPIRE', key, math.ceil(ms))
  end
end

-- Makes the tenant's index exist for at least `ms` from now. The index disappears with the last record.
local function keep_index(tenant, ms)
  keep_key(k_jobs .. tenant, ms)
end

-- Of all tenants together, about this many jobs are listed, the newest. An entry takes 120 bytes.
local MAX_RECENT_JOBS = 20000

-- Removes ids without a record from the beginning of the list of all tenants' jobs. An admission only keeps the list
-- within its bound.
local function trim_recent()
  local MAX_EXAMINED_IDS = 64
  for _, id in ipairs(redis.call('ZRANGE', k_recent_jobs, 0, MAX_EXAMINED_IDS - 1)) do
    if redis.call('EXISTS', k_rq_job .. id) == 0 then
      redis.call('ZREM', k_recent_jobs, id)
    end
  end
end

local function index_job(tenant, id, ms)
  local key = k_jobs .. tenant
  redis.call('ZADD', key, now_ms, id)
  redis.call('ZADD', k_recent_jobs, now_ms, id)
  if now_us % TRIM_INDEX_ONE_IN == 0 then
    trim_index(key, k_rq_job)
    local excess = redis.call('ZCARD', k_recent_jobs) - MAX_RECENT_JOBS
    if excess > 0 then
      redis.call('ZREMRANGEBYRANK', k_recent_jobs, 0, math.min(excess, 8 * TRIM_INDEX_ONE_IN) - 1)
    end
  end
  keep_index(tenant, ms)
  -- A minute longer than needed, so that only one admission a minute has to set it.
  if redis.call('PTTL', k_recent_jobs) < ms then
    redis.call('PEXPIRE', k_recent_jobs, math.ceil(ms) + 60000)
  end
end
