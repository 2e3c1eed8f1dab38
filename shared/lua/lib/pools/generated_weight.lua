-- generated_weight: keeps the cost of a generated token in each pool, in prompt tokens; it follows the workers' fits.
-- KEYS books
-- USES clock settings
-- All weights are in thousandths. If PENSTOCK_GENERATED_WEIGHT is a number, it is the weight in all pools. If it is
-- `auto`, the pool record holds the weight as `generated_weight_milli`, and heartbeats change it. A job keeps the
-- weight with which its cost was estimated, so that its estimate and its charges agree.

-- The weight of a pool whose workers report no fit. Workers report their weighted tokens per second with this weight,
-- and a job that stores no weight has it. shared/jobs/cost.py has the same number.
local USUAL_WEIGHT_MILLI = 4000
local LEAST_WEIGHT_MILLI, MOST_WEIGHT_MILLI = 1000, 1000000
-- The weight stays as it is while the workers' mean fit is at most this many times as large or as small. It is then
-- wrong by less than the noise of most predictions, and fits that vary by a tenth to either side never move it twice.
-- One change is by this factor at most. The costs of the queued jobs, which keep their weights, and the pool's rate
-- differ by no more than that.
local WEIGHT_BAND = 1.25
-- The weight changes once the fits of all heartbeats in this time were on the same side of that range, and not again
-- before the same time has passed. By then a pool has done most of the work that was queued before.
local WEIGHT_CHANGE_MS = 10000

-- Returns a pool's weight. `set_weight` is the setting, nil for `auto`.
local function weight_of_pool(set_weight, stored)
  if set_weight then
    return 1000 * set_weight
  end
  return math.floor(number(stored, USUAL_WEIGHT_MILLI, LEAST_WEIGHT_MILLI, MOST_WEIGHT_MILLI))
end

-- Stores the weight of a job that is being admitted, unless it is the usual weight.
local function keep_weight(job_key, weight_milli)
  if weight_milli ~= USUAL_WEIGHT_MILLI then
    redis.call('HSET', job_key, 'penstock_generated_weight_milli', weight_milli)
  end
end

-- Returns the cost of a job so far, in thousandths of a weighted token. `prompt_tokens` are those that were computed;
-- CPU time counts as prompt tokens.
local function cost_of(job, prompt_tokens, generated_tokens)
  return 1000 * prompt_tokens + job.weight_milli * generated_tokens
end

-- Returns the rate of a pool per second, in thousandths of a weighted token, with the pool's weight. `mu_milli` is the
-- same with the weight of the workers' reports, and `generated_milli` the generated tokens in it, in thousandths.
local function mu_with_weight(slug, mu_milli, generated_milli)
  local set_weight = settings.read_setting('generated_weight')
  if set_weight or mu_milli <= 0 then
    return mu_milli
  end
  local weight_milli = weight_of_pool(nil, redis.call('HGET', k_books .. slug, 'generated_weight_milli'))
  return math.max(1, mu_milli + (weight_milli - USUAL_WEIGHT_MILLI) / 1000 * generated_milli)
end

-- Returns since when the fits have been above the range (`side` is 1) or below it (-1): the stored time, which is
-- negative for below, or nil.
local function off_since_ms(stored, side)
  local since_ms = number(stored, 0, -now_ms, now_ms) * side
  return since_ms > 0 and since_ms or nil
end

-- Moves a pool's weight towards the mean fit of its workers, `fit_milli`; nil if they report none.
local function follow_fit(slug, fit_milli)
  local key = k_books .. slug
  local stored = read_fields(key, { 'generated_weight_milli', 'weight_off_ms', 'mean_mwt' })
  local weight_milli = weight_of_pool(nil, stored.generated_weight_milli)
  local fit = math.max(LEAST_WEIGHT_MILLI, math.min(MOST_WEIGHT_MILLI, fit_milli or weight_milli))
  local lowest, highest = weight_milli / WEIGHT_BAND, weight_milli * WEIGHT_BAND
  if settings.read_setting('generated_weight') or fit >= lowest and fit <= highest then
    if stored.weight_off_ms then
      redis.call('HDEL', key, 'weight_off_ms')
    end
    return
  end
  local side = fit > weight_milli and 1 or -1
  local since_ms = off_since_ms(stored.weight_off_ms, side)
  if not stored.generated_weight_milli and not stored.mean_mwt then
    -- No job of this pool has ended, so no cost was measured with another weight.
    redis.call('HSET', key, 'generated_weight_milli', math.floor(fit + 0.5))
  elseif not since_ms then
    redis.call('HSET', key, 'weight_off_ms', side * now_ms)
  elseif now_ms - since_ms >= WEIGHT_CHANGE_MS then
    redis.call('HSET', key, 'generated_weight_milli',
      math.floor(math.max(lowest, math.min(highest, fit)) + 0.5), 'weight_off_ms', side * now_ms)
  end
end
