-- open_batches: finds the batches of a tenant that have not ended.
-- KEYS open_batches_of batch_record
-- USES clock index

local BATCH_ENDED = { completed = true, failed = true, expired = true, cancelled = true }
local MAX_OPEN_BATCHES = 32

-- Adds a batch, whose record exists for `ttl_ms`, to the open ones of its tenant.
local function note_open_batch(tenant, id, ttl_ms)
  redis.call('SADD', k_open_batches_of .. tenant, id)
  index.keep_key(k_open_batches_of .. tenant, ttl_ms)
end

-- Returns for each open batch of the tenant its id and the id of its input file: id, file, …. Removes batches that have
-- ended, whose records have expired, or that are another tenant's.
local function ids_of(tenant)
  local EXAMINED = 64
  local key, open = k_open_batches_of .. tenant, {}
  for _, id in ipairs(redis.call('SRANDMEMBER', key, EXAMINED)) do
    local saved = read_fields(k_batch_record .. id, { 'tenant', 'status', 'input_file' })
    if saved.tenant == tenant and saved.status and not BATCH_ENDED[saved.status] then
      open[#open + 1] = id
      open[#open + 1] = saved.input_file or ''
    else
      redis.call('SREM', key, id)
    end
  end
  return open
end
