-- pool_record: the pool record of a model: sums and costs in thousandths of a weighted token, times in ms, rates per s.
-- KEYS books
-- KEEPS 3
-- USES clock

-- Rates that were reported longer ago than this are not used.
local RATES_MS = 10000

local function book(slug, name, by)
  redis.call('HINCRBY', k_books .. slug, name, whole(by))
end

-- Returns the weight stored in a policy field, in thousandths. If the weight is missing or
-- invalid, returns 1000 (weight 1): calculating with an invalid weight could raise an error between two writes.
local function weight_in(stored)
  return math.floor(number(stored, 1000, 1, 1000000))
end

-- Updates the moving averages of a succeeded job's run time and cost, and the time of the last success. The first job
-- sets the averages, and each later job moves them by an eighth of the difference.
local function smooth(slug, run_ms, cost_mwt)
  local pool_fields = read_fields(k_books .. slug, { 'run_ms', 'mean_mwt' })
  local mean_run_ms, mean_cost_mwt = number(pool_fields.run_ms), number(pool_fields.mean_mwt)
  redis.call('HSET', k_books .. slug,
    'run_ms', whole(mean_run_ms and mean_run_ms + (run_ms - mean_run_ms) / 8 or run_ms),
    'mean_mwt', whole(mean_cost_mwt and mean_cost_mwt + (cost_mwt - mean_cost_mwt) / 8 or cost_mwt),
    'succeeded_ms', now_ms)
end
