-- tenant_bytes: counts the bytes of a tenant's jobs in the store's memory, inflight and until their results expire.
-- KEYS kept rq_job lists tenant
-- USES clock index job_record

-- The hash `kept` has a field for each period in which results expire, named by the end of the period in s. The time
-- that results are kept has 32 periods, so the hash has few fields whatever the number of jobs.

-- Returns a stored number, or 0 if another program has written something else.
local function kept_number(text)
  local bytes = tonumber(text or 0) or 0
  return bytes >= 0 and bytes < 1e15 and math.floor(bytes) or 0
end

-- Returns the end, in s, of the period in which an item expires that is kept for `ttl_s` from now.
local function period_end_s(ttl_s, result_ttl_s)
  local period_s = math.max(1, math.ceil(result_ttl_s / 32))
  return math.ceil((now_ms / 1000 + ttl_s) / period_s) * period_s
end

-- Returns the bytes of a job's record, without its payload and its result. `names` is the number of names (an
-- Idempotency-Key, a supersede_key) that find the job.
local function record_bytes(metadata_bytes, form_bytes, names)
  -- The bytes that an ended job keeps besides its metadata and its result: RQ's record and result, and its entries in
  -- the tenant's index and in RQ's registry; and the key of a name. Measured with MEMORY USAGE (bench/memory.py).
  local RECORD_BYTES, NAME_BYTES = 2500, 250
  -- A hash that has a value of more than 512 bytes is stored as a table, which takes 1,500 bytes more.
  local table_bytes = math.max(metadata_bytes, form_bytes) > 512 and 1500 or 0
  return RECORD_BYTES + metadata_bytes + form_bytes + names * NAME_BYTES + table_bytes
end

-- Returns the bytes of the tenant's inflight jobs (`live`), those of its `ended` jobs, the time in s at which the first
-- of these expire (nil if none does), and the fields of periods that have `passed`, if any of them has.
local function read_kept(tenant)
  local fields = peek_fields(k_kept .. tenant, { 'live', 'ended', 'next_s' })
  local next_s = kept_number(fields.next_s)
  local kept = { live = kept_number(fields.live), ended = kept_number(fields.ended), first_s = next_s > 0 and next_s
    or nil, passed = nil }
  if next_s == 0 or next_s * 1000 > now_ms then
    return kept
  end
  kept.ended, kept.first_s, kept.passed = 0, nil, {}
  local all = redis.call('HGETALL', k_kept .. tenant)
  for i = 1, #all, 2 do
    local end_s = tonumber(all[i])
    if end_s and end_s * 1000 > now_ms then
      kept.ended, kept.first_s = kept.ended + kept_number(all[i + 1]), math.min(kept.first_s or end_s, end_s)
    elseif end_s then
      kept.passed[#kept.passed + 1] = all[i]
    end
  end
  return kept
end

-- Returns the numbers in these fields of the tenant's count by name. If another program has stored another type under
-- its key, the key is deleted.
local function open_kept(tenant, names)
  local fields = redis.pcall('HMGET', k_kept .. tenant, unpack(names))
  if fields.err then
    redis.call('DEL', k_kept .. tenant)
    fields = {}
  end
  local numbers = {}
  for i = 1, #names do
    numbers[names[i]] = kept_number(fields[i])
  end
  return numbers
end

-- Counts an admitted job, and removes the periods that have passed. The count exists for at least `ms`.
local function keep_offered(tenant, bytes, ms)
  local key = k_kept .. tenant
  local live, kept = open_kept(tenant, { 'live' }).live, read_kept(tenant)
  for _, field in ipairs(kept.passed or {}) do
    redis.call('HDEL', key, field)
  end
  redis.call('HSET', key, 'live', whole(live + bytes))
  if kept.passed and kept.first_s then
    redis.call('HSET', key, 'ended', whole(kept.ended), 'next_s', whole(kept.first_s))
  elseif kept.passed then
    redis.call('HDEL', key, 'ended', 'next_s')
  end
  index.keep_key(key, ms)
end

-- Whether none of the tenant's jobs is queued or running. Then its inflight jobs take no bytes: any bytes still counted
-- belong to jobs whose records, and so their sizes, were lost.
local function has_no_inflight_jobs(tenant)
  return redis.call('EXISTS', k_lists .. tenant) == 0
    and tonumber(redis.call('HGET', k_tenant .. tenant, 'running') or 0) == 0
end

-- Counts an ended job in the period in which its result expires, and its event stream in an earlier one. `result_bytes`
-- is the length of its result, `texts_bytes` that of the texts in the stream, which has `entries` entries. Returns the
-- number of bytes counted for longer than the stream, and the end of their period in s.
local function keep_ended(job, result_bytes, texts_bytes, entries, result_ttl_s, events_ttl_s)
  local tenant, stored = job.tenant, job_record.facts_of(job)
  local key = k_kept .. tenant
  local result_s, events_s = period_end_s(result_ttl_s, result_ttl_s), period_end_s(events_ttl_s, result_ttl_s)
  -- An entry of a stream takes 90 bytes besides its text.
  local bytes, events_bytes = kept_number(stored.penstock_fixed_bytes) + result_bytes, 90 * entries + texts_bytes
  local result_field, events_field = digits(result_s), digits(events_s)
  local kept = open_kept(tenant, { 'live', 'ended', 'next_s', result_field, events_field })
  local first_s, for_result = math.min(events_s, result_s, kept.next_s > 0 and kept.next_s or events_s), bytes
  if result_field == events_field then
    for_result = for_result + events_bytes
  end
  local live = has_no_inflight_jobs(tenant) and 0 or math.max(0, kept.live - kept_number(stored.penstock_bytes))
  -- The later of two equal fields is the one that is stored.
  redis.call('HSET', key, 'live', whole(live), 'ended', whole(kept.ended + bytes + events_bytes),
    'next_s', whole(first_s), events_field, whole(kept[events_field] + events_bytes),
    result_field, whole(kept[result_field] + for_result))
  index.keep_key(key, 1000 * result_s - now_ms)
  return bytes, result_s
end

-- Makes the sum over a tenant's ended jobs and the first time of expiry agree with the periods, and removes periods,
-- and a count of inflight jobs, that have no valid number: it is read as 0 by all scripts. Returns the number of
-- repairs.
local function recount_ended(tenant)
  local key, all = k_kept .. tenant, redis.call('HGETALL', k_kept .. tenant)
  local held, ended, first_s, repairs = {}, 0, nil, 0
  for i = 1, #all, 2 do
    local name, value = all[i], all[i + 1]
    local bytes = string.match(value, '^%d+$') and tonumber(value)
    local is_valid = bytes and bytes == kept_number(value)
    local end_s = string.match(name, '^%d+$') and tonumber(name)
    if end_s and is_valid then
      ended, first_s = ended + bytes, math.min(first_s or end_s, end_s)
    elseif name == 'live' and is_valid or name == 'ended' or name == 'next_s' then
      held[name] = value
    else
      repairs = repairs + redis.call('HDEL', key, name)
    end
  end
  if not first_s then
    return repairs + redis.call('HDEL', key, 'ended', 'next_s')
  end
  if held.ended ~= digits(ended) or held.next_s ~= digits(first_s) then
    redis.call('HSET', key, 'ended', whole(ended), 'next_s', whole(first_s))
    repairs = repairs + 1
  end
  return repairs
end

-- Counts bytes of the store among those of a tenant's jobs, in the period that ends at `end_s`.
local function count_bytes(tenant, end_s, bytes)
  local field = digits(end_s)
  local kept = open_kept(tenant, { 'ended', 'next_s', field })
  local first_s = math.min(kept.next_s > 0 and kept.next_s or end_s, end_s)
  redis.call('HSET', k_kept .. tenant, 'ended', whole(kept.ended + bytes), 'next_s', whole(first_s),
    field, whole(kept[field] + bytes))
  index.keep_key(k_kept .. tenant, 1000 * end_s - now_ms)
end

-- Takes bytes back that count_bytes has counted, unless their period has passed or another program has changed it.
local function uncount_bytes(tenant, end_s, bytes)
  if end_s * 1000 <= now_ms then
    return
  end
  local field = digits(end_s)
  local kept = open_kept(tenant, { 'ended', field })
  local freed = math.min(bytes, kept.ended, kept[field])
  if freed > 0 then
    redis.call('HSET', k_kept .. tenant, 'ended', whole(kept.ended - freed), field, whole(kept[field] - freed))
    index.keep_key(k_kept .. tenant, 1000 * end_s - now_ms)
  end
end

-- Subtracts the bytes of a result that was erased before it expired.
local function keep_erased(tenant, id, bytes)
  uncount_bytes(tenant, kept_number(redis.call('HGET', k_rq_job .. id, 'penstock_kept_s')), bytes)
end
