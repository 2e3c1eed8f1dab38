-- file_bytes: counts the bytes of files and of the answers of batches among those that a tenant's jobs take.
-- KEYS kept tenant
-- USES clock index kept settings

-- Returns the end, in s, of the period in which something expires that is kept for `ttl_s`: an hour or, for what is
-- kept for days, a day, so that the hash of periods stays small.
local function file_period_s(ttl_s)
  local period_s = ttl_s > 86400 and 86400 or 3600
  return math.ceil((now_ms / 1000 + ttl_s) / period_s) * period_s
end

-- Adds bytes to the period that ends at `end_s`.
local function count_file_bytes(tenant, end_s, bytes)
  local field = whole(end_s)
  local ended, next_s, in_period = open_kept(tenant, 'ended', 'next_s', field)
  local first_s = math.min(next_s > 0 and next_s or end_s, end_s)
  redis.call('HSET', k_kept .. tenant, 'ended', whole(ended + bytes), 'next_s', whole(first_s),
    field, whole(in_period + bytes))
  keep_key(k_kept .. tenant, 1000 * end_s - now_ms)
end

-- Takes bytes back from the period that ends at `end_s`, unless it has passed or another program has changed it.
local function uncount_file_bytes(tenant, end_s, bytes)
  if end_s * 1000 <= now_ms then
    return
  end
  local field = whole(end_s)
  local ended, in_period = open_kept(tenant, 'ended', field)
  local freed = math.min(bytes, ended, in_period)
  if freed > 0 then
    redis.call('HSET', k_kept .. tenant, 'ended', whole(ended - freed), field, whole(in_period - freed))
    keep_key(k_kept .. tenant, 1000 * end_s - now_ms)
  end
end

-- Returns the bytes that the tenant's jobs and files take, and the most that they may take (nil without a bound).
local function bytes_of_tenant(tenant)
  -- The part of the store's memory that a tenant may take is the one in lib/verdict.lua.
  local TENANT_PART = 4
  local max_tenant_bytes, store_bytes = read_settings('max_tenant_bytes', 'store_bytes')
  local own = number(redis.call('HGET', k_tenant .. tenant, 'policy_max_bytes'), nil, 1)
  local live, ended = read_kept(tenant)
  return live + ended, own or max_tenant_bytes or store_bytes and math.floor(store_bytes / TENANT_PART)
end
