-- fleet: keeps the sums of the live workers' slots and rates, and values derived from them, for pools and the system.
-- KEYS config live counted pool worker books crashes
-- KEEPS 12
-- USES clock live_places generated_weight crashes

-- The contribution of a live worker to the sums is stored as its *part*, in the hash `counted`. A heartbeat adds the
-- difference between the worker's new part and its stored one. Farewell subtracts the stored part; so do renew, reap
-- and farewell for each worker that is no longer live because its heartbeats stopped. A heartbeat therefore costs the
-- same for any number of workers. All numbers of a part are integers, so that adding and subtracting leaves no rounding
-- errors.
-- Of a pool's work, each worker does the part that its weighted tokens per second are of the pool's. The means of the
-- times per token are therefore weighted by `mu_wtps`: a slow worker runs fewer of the jobs. The weights and the
-- weighted times follow from a worker's rates and are not stored in its part.
-- The means of the workers' fits are weighted in the same way. A fit is the weight of a generated token that would make
-- the worker's weighted tokens per second the same for any mix of prompts and answers (lib/pools/generated_weight.lua).
--
-- Rates above RATE_MAX are not believed: sums over thousands of workers must stay below 2^53.
local RATE_MAX = 1e10
-- A fit counts as at most this, the largest weight.
local MOST_FIT = 1000
-- At most this many workers are removed by one call.
local MAX_RETIRED = 64
-- The sums of a pool, which are fields of its record and, together with `slug` and `fit_milli`, those of a part.
local SUMS = { 'slots', 'rated', 'mu_milli', 'prefill_milli', 'tpot_ns', 'weights', 'prompt_times', 'output_times',
  'generated_milli', 'fit_weights', 'fits' }
-- The numbers of a part that are stored, in this order after the slug; the others follow from them.
local STORED = { 'slots', 'rated', 'mu_milli', 'prefill_milli', 'tpot_ns', 'generated_milli', 'fit_milli' }
-- A weighted time is counted at most as this, which thousands of workers can add up.
local WEIGHTED_MAX = 1e12

-- Returns a reported rate as an integer number of units, or 0 if it is not a positive number.
local function rate_in_units(reported, units)
  local rate = number(reported, 0)
  return rate > 0 and math.max(1, math.floor(math.min(rate, RATE_MAX) * units + 0.5)) or 0
end

-- Adds to a part its weight, which is its weighted tokens per second, and the values multiplied by the weight: its
-- times in µs for a prompt token and for an output token, and its fit in thousandths; 0 if it has none.
local function add_weights(part)
  local weight = part.rated > 0 and math.max(1, math.floor(part.mu_milli / 1000 + 0.5)) or 0
  part.weights, part.fit_weights = weight, part.fit_milli > 0 and weight or 0
  part.prompt_times = part.prefill_milli > 0 and math.floor(math.min(WEIGHTED_MAX, weight * 1e9 / part.prefill_milli)
    + 0.5) or 0
  part.output_times = math.floor(math.min(WEIGHTED_MAX, weight * part.tpot_ns / 1000) + 0.5)
  part.fits = math.min(WEIGHTED_MAX, weight * part.fit_milli)
  return part
end

-- Returns the part of a worker: its slots and, if it reports all three rates, `rated` 1, the rates and the fit.
local function part_from(slug, slots, rates)
  local part = { slug = slug, slots = math.max(0, slots), rated = 0, mu_milli = 0, prefill_milli = 0, tpot_ns = 0,
    generated_milli = 0, fit_milli = 0 }
  local mu_milli, prefill_milli = rate_in_units(rates.mu_wtps, 1000), rate_in_units(rates.prefill_tps, 1000)
  local tpot_ns = rate_in_units(math.min(number(rates.tpot_ms, 0), RATE_MAX / 1000), 1000000)
  if mu_milli > 0 and prefill_milli > 0 and tpot_ns > 0 then
    part.rated, part.mu_milli, part.prefill_milli, part.tpot_ns = 1, mu_milli, prefill_milli, tpot_ns
    part.generated_milli = math.min(mu_milli, rate_in_units(rates.generated_tps, 1000))
    part.fit_milli = rate_in_units(math.min(number(rates.fit_generated_weight, 0), MOST_FIT), 1000)
  end
  return add_weights(part)
end

local function no_sums()
  local sums = {}
  for _, name in ipairs(SUMS) do
    sums[name] = 0
  end
  return sums
end

-- Converts a part to the text that is stored, and back. `parse_part` returns nil for text that is not a part. The text
-- of a worker of an earlier version ends after the rates.
local function format_part(part)
  local words = { part.slug }
  for i, name in ipairs(STORED) do
    words[i + 1] = digits(part[name])
  end
  return table.concat(words, ' ')
end
local function parse_part(text)
  local slug, numbers = string.match(text or '', '^(%S+)( %d+ %d+ %d+ %d+ %d+ ?%d* ?%d*)$')
  local part, next_number = { slug = slug }, string.gmatch(numbers or '', '%d+')
  for _, name in ipairs(STORED) do
    part[name] = number(next_number(), 0)
  end
  return slug and add_weights(part) or nil
end

-- Writes a pool's sums, and the rates that admission reads: the sum of the weighted tokens per second, and the weighted
-- means of the other rates. `reported_ms` is the time of the heartbeat that changed the sums, or nil.
local function write_sums(slug, sums, reported_ms)
  local key, fields = k_books .. slug, {}
  for i, name in ipairs(SUMS) do
    fields[2 * i - 1], fields[2 * i] = name, whole(sums[name])
  end
  redis.call('HSET', key, unpack(fields))
  if sums.rated > 0 then
    -- Rates beyond all measure have weighted times of 0; their plain means are used.
    local has_times = sums.weights > 0 and sums.prompt_times > 0 and sums.output_times > 0
    redis.call('HSET', key,
      'mu_wtps', generated_weight.mu_with_weight(slug, sums.mu_milli, sums.generated_milli) / 1000,
      'prefill_tps', has_times and 1e6 * sums.weights / sums.prompt_times or sums.prefill_milli / 1000 / sums.rated,
      'tpot_ms', has_times and sums.output_times / sums.weights / 1000 or sums.tpot_ns / 1000000 / sums.rated)
    if reported_ms then
      redis.call('HSET', key, 'rates_ms', reported_ms)
    end
  end
end

-- Adds `after` to the sums of its pool and subtracts `before`, which must be of the same pool. Either may be nil.
local function change_sums(before, after, reported_ms)
  local slug = (before or after).slug
  local sums, added_slots = read_fields(k_books .. slug, SUMS), (after and after.slots or 0)
    - (before and before.slots or 0)
  for _, name in ipairs(SUMS) do
    sums[name] = math.max(0, number(sums[name], 0) + (after and after[name] or 0) - (before and before[name] or 0))
  end
  if reported_ms then
    generated_weight.follow_fit(slug, sums.fit_weights > 0 and sums.fits / sums.fit_weights or nil)
  end
  write_sums(slug, sums, reported_ms)
  if reported_ms or sums.slots == 0 then
    live_places.update_places(slug, sums.slots, generated_weight.mu_with_weight(slug, sums.mu_milli,
      sums.generated_milli))
  end
  if added_slots ~= 0 then
    local live_slots = number(redis.call('HGET', k_config, 'live_slots'), 0)
    redis.call('HSET', k_config, 'live_slots', whole(math.max(0, live_slots + added_slots)))
  end
end

-- Returns the stored text of a worker's part, or nil. A key of another type was written by another program.
local function stored_part(name)
  local stored = redis.pcall('HGET', k_counted, name)
  if type(stored) == 'table' then
    redis.call('DEL', k_counted)
  end
  return type(stored) == 'string' and stored or nil
end

local function discount(name)
  local before = parse_part(stored_part(name))
  if before then
    change_sums(before, nil)
  end
  redis.call('HDEL', k_counted, name)
  redis.call('ZREM', k_live, name)
end

-- Subtracts the parts of workers whose last heartbeat is older than LIVE_MS.
local function retire_silent(now_ms)
  local silent = redis.pcall('ZRANGEBYSCORE', k_live, '-inf', '(' .. digits(now_ms - LIVE_MS), 'LIMIT', 0, MAX_RETIRED)
  if silent.err then
    redis.call('DEL', k_live)
    return
  end
  for i = 1, #silent do
    local part, beat_ms = parse_part(stored_part(silent[i])), redis.call('ZSCORE', k_live, silent[i])
    if part and redis.call('HEXISTS', k_crashes .. part.slug, silent[i]) == 0 then
      crashes.note_crash(part.slug, silent[i], number(beat_ms, now_ms, 0, now_ms), crashes.SILENT)
    end
    discount(silent[i])
  end
end

-- Counts a worker's heartbeat. The rates are those in the worker's hash, which keeps a rate until another is reported.
-- One that could load the model, and does not yet, has neither slots nor rates (lib/pools/loadable.lua).
local function count_worker(name, slug, slots, now_ms, is_loadable)
  retire_silent(now_ms)
  local stored, rates = stored_part(name), is_loadable and {} or read_fields(k_worker .. name, { 'mu_wtps',
    'prefill_tps', 'tpot_ms', 'generated_tps', 'fit_generated_weight' })
  local after = part_from(slug, is_loadable and 0 or slots, rates)
  local before, text = parse_part(stored), format_part(after)
  crashes.forget_crash(slug, name)
  if not before and redis.call('EXISTS', k_counted) == 0 then
    -- No worker is counted, so both sums are 0. Other figures are those of a store that was emptied in part.
    redis.call('HSET', k_config, 'live_slots', 0, 'live_places', 0)
    redis.call('HSET', k_books .. slug, 'places', 0)
    write_sums(slug, no_sums())
  end
  if before and before.slug ~= slug then
    redis.call('ZREM', k_pool .. before.slug, name)
    change_sums(before, nil)
    before = nil
  end
  change_sums(before, after, now_ms)
  if text ~= stored then
    redis.call('HSET', k_counted, name, text)
  end
  redis.call('ZADD', k_live, now_ms, name)
end
