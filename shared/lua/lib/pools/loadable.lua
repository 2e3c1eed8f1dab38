-- loadable: keeps what is known of a model that no worker holds, and that one loads for the jobs that wait for it.
-- KEYS config books
-- USES clock generated_weight
-- A worker has the slots and the rates of the model that it holds or loads. Those of its other models are therefore not
-- in the sums of lib/pools/fleet.lua. The record of such a model's pool has when its jobs will be claimed
-- (`claims_from_ms`), its slots then (`loadable_slots`), and its rates unless a worker of the pool has reported some.

-- If loading it has failed, the record also has how often in a row (`load_failures`), why (`load_error`), and when it
-- is tried again by any worker (`load_retry_ms`). Until then its jobs are refused.

-- A model is tried again after a failure at the latest after this time, whatever a worker reports.
local LONGEST_PAUSE_MS = 600000
local MAX_ERROR_BYTES = 200

local function note_failure(slug, reported)
  local key, failures = k_books .. slug, number(reported.load_failures, nil, 0, 1000000)
  if failures and failures > 0 then
    local pause_ms = number(reported.load_retry_in_ms, 0, 0, LONGEST_PAUSE_MS)
    redis.call('HSET', key, 'load_failures', whole(failures), 'load_retry_ms', now_ms + pause_ms, 'load_error',
      string.sub(tostring(reported.load_error or ''), 1, MAX_ERROR_BYTES))
  elseif failures then
    redis.call('HDEL', key, 'load_failures', 'load_retry_ms', 'load_error')
  end
end

-- Returns in how many ms a model that nobody holds is tried again after a failed load; 0 if it may be tried now.
local function ms_to_load_retry(pool_fields)
  local retry_ms = number(pool_fields.slots, 0, 0) == 0 and number(pool_fields.load_retry_ms, 0, 0) or 0
  return math.max(0, math.min(retry_ms - now_ms, LONGEST_PAUSE_MS))
end

-- Notes a model that a worker could load. `reported` has the facts of its heartbeat.
local function note_loadable(slug, slots, reported)
  local key = k_books .. slug
  redis.call('HSET', k_config, 'loadable_ms', now_ms)
  note_failure(slug, reported)
  redis.call('HSET', key, 'claims_from_ms', now_ms + number(reported.claims_in_ms, 0, 0, 86400000),
    'loadable_slots', whole(math.max(1, slots)))
  local mu, prefill_tps, tpot_ms = number(reported.mu_wtps, 0, 0, 1e10), number(reported.prefill_tps, 0, 0, 1e10),
    number(reported.tpot_ms, 0, 0, 1e10)
  if mu > 0 and prefill_tps > 0 and tpot_ms > 0 and number(redis.call('HGET', key, 'rated'), 0) == 0 then
    local generated_tps = math.min(mu, number(reported.generated_tps, 0, 0, 1e10))
    redis.call('HSET', key, 'mu_wtps', generated_weight.mu_with_weight(slug, 1000 * mu, 1000 * generated_tps) / 1000,
      'prefill_tps', prefill_tps, 'tpot_ms', tpot_ms, 'rates_ms', now_ms)
  end
end

local function forget_loadable(slug)
  redis.call('HDEL', k_books .. slug, 'claims_from_ms', 'loadable_slots', 'load_failures', 'load_retry_ms',
    'load_error')
end

-- Returns the slots of a pool: those of its workers or, if none holds the model, those that it will have.
local function slots_with_loadable(pool_fields)
  local slots = number(pool_fields.slots, 0, 0)
  return slots == 0 and pool_fields.claims_from_ms and number(pool_fields.loadable_slots, 0, 0) or slots
end
