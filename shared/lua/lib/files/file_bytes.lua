-- file_bytes: counts the bytes of files and batches by when they expire, and says whether further ones may be stored.
-- KEYS tenant file_bytes
-- USES clock index tenant_bytes settings

-- Files are kept in one of two homes, the store or a folder. The contents in the store count among the bytes of its
-- tenant's jobs; for a folder, a tenant's bytes are counted by themselves. The bytes of all tenants are counted for
-- each home. Records of files and of batches, and answers that are not in a file yet, are always in the store.
local STORE = 'store'
local FOLDER = 'folder'
-- The bytes counted for the record of a file and its places in indexes, and the same for a batch. They take about 650
-- and 720 bytes (used_memory_dataset of Valkey 9.1), and more once a text in them is so long that the server stores a
-- table.
local FILE_RECORD_BYTES, BATCH_RECORD_BYTES = 1000, 1500
-- The bytes of the key that finds a file or a batch by its Idempotency-Key.
local IDEM_BYTES = 300

-- Returns the end, in s, of the period in which an item expires after `ttl_s`. A period is an hour or, for a ttl of
-- days, a day, so that the hash of periods stays small.
local function file_period_s(ttl_s)
  local period_s = ttl_s > 86400 and 86400 or 3600
  return math.ceil((now_ms / 1000 + ttl_s) / period_s) * period_s
end

-- Adds bytes, which may be negative, to the period that ends at `end_s` of a hash that has nothing but periods.
local function add_to_period(key, end_s, bytes)
  local field = digits(end_s)
  local total = number(redis.call('HGET', key, field), 0, 0) + bytes
  if total > 0 then
    redis.call('HSET', key, field, whole(total))
    index.keep_key(key, 1000 * end_s - now_ms)
  else
    redis.call('HDEL', key, field)
  end
end

-- Returns the sum of a hash that has nothing but periods, and removes those that have passed.
local function sum_of_periods(key)
  local sum, all = 0, redis.call('HGETALL', key)
  for i = 1, #all, 2 do
    if number(all[i], 0) * 1000 <= now_ms then
      redis.call('HDEL', key, all[i])
    else
      sum = sum + number(all[i + 1], 0, 0)
    end
  end
  return sum
end

-- Counts bytes of a file or a batch in the period that ends at `end_s`.
local function count_file_bytes(home, tenant, end_s, bytes)
  add_to_period(k_file_bytes .. home, end_s, bytes)
  if home == FOLDER then
    add_to_period(k_file_bytes .. home .. '.' .. tenant, end_s, bytes)
  else
    tenant_bytes.count_bytes(tenant, end_s, bytes)
  end
end

-- Takes bytes back that count_file_bytes has counted, unless their period has passed.
local function uncount_file_bytes(home, tenant, end_s, bytes)
  if end_s * 1000 <= now_ms then
    return
  end
  add_to_period(k_file_bytes .. home, end_s, -bytes)
  if home == FOLDER then
    add_to_period(k_file_bytes .. home .. '.' .. tenant, end_s, -bytes)
  else
    tenant_bytes.uncount_bytes(tenant, end_s, bytes)
  end
end

local function most_in_home(home)
  -- Files take at most this part of the store's memory, or this many bytes of a folder, unless a setting says
  -- otherwise.
  local FILES_PART, FOLDER_BYTES, UNKNOWN_STORE_BYTES = 2, 10737418240, 1073741824
  local set = settings.read_settings({ 'store_bytes', 'max_files_bytes' })
  return set.max_files_bytes or home == FOLDER and FOLDER_BYTES
    or math.floor((set.store_bytes or UNKNOWN_STORE_BYTES) / FILES_PART)
end

-- Returns nil if `bytes` more may be stored in a home. Otherwise returns whose bytes are exhausted, `tenant` or `all`;
-- how many there are; and how many there may be.
local function exhausted_by(home, tenant, bytes)
  -- A tenant may take this part of the store's memory (as in lib/admission/facts.lua), or of the bytes of all files
  -- in a folder.
  local TENANT_PART = 4
  local most_of_all = most_in_home(home)
  local taken, most
  if home == FOLDER then
    taken = sum_of_periods(k_file_bytes .. home .. '.' .. tenant)
    most = math.floor(most_of_all / TENANT_PART)
  else
    local set, kept = settings.read_settings({ 'max_tenant_bytes', 'store_bytes' }), tenant_bytes.read_kept(tenant)
    taken = kept.live + kept.ended
    most = number(redis.call('HGET', k_tenant .. tenant, 'policy_max_bytes'), nil, 1) or set.max_tenant_bytes
      or set.store_bytes and math.floor(set.store_bytes / TENANT_PART)
  end
  if most and taken + bytes > most then
    return 'tenant', taken, most
  end
  local taken_by_all = sum_of_periods(k_file_bytes .. home)
  if taken_by_all + bytes > most_of_all then
    return 'all', taken_by_all, most_of_all
  end
end
