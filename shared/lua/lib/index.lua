-- index: keeps a tenant's index of jobs no longer than the jobs' records.
-- KEYS jobs rq_job
-- USES clock

-- One admission in TRIM_INDEX_ONE_IN examines this many ids at the start of the index, and as many at another place.
-- An id without a record is removed. Each admission adds one id, so ids without a record stay a small part of the
-- index. The second place matters if the oldest job has a long deadline: its record then outlives those behind it.
local EXAMINED_IDS, TRIM_INDEX_ONE_IN = 16, 8

-- Removes ids without a record from a part of the index that begins at position `first`, from 0.
local function trim_part(key, first)
  local ids = redis.call('ZRANGE', key, first, first + EXAMINED_IDS - 1)
  for i = 1, #ids do
    if redis.call('EXISTS', k_rq_job .. ids[i]) == 0 then
      redis.call('ZREM', key, ids[i])
    end
  end
end

-- Makes a key exist for at least `ms` from now.
local function keep_key(key, ms)
  if redis.call('PTTL', key) < ms then
    redis.call('PEXPIRE', key, math.ceil(ms))
  end
end

-- Makes the tenant's index exist for at least `ms` from now. The index disappears with the last record.
local function keep_index(tenant, ms)
  keep_key(k_jobs .. tenant, ms)
end

-- Adds an admitted job to its tenant's index, for at least `ms`.
local function index_job(tenant, id, ms)
  local key = k_jobs .. tenant
  redis.call('ZADD', key, now_ms, id)
  if now_us % TRIM_INDEX_ONE_IN == 0 then
    trim_part(key, 0)
    trim_part(key, math.floor(now_us / TRIM_INDEX_ONE_IN) % math.max(1, redis.call('ZCARD', key)))
  end
  keep_index(tenant, ms)
end
