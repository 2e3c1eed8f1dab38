-- books: what is known of a pool as a whole; per model, in thousandths of a weighted token, ms and tokens a second.
-- KEYS books pool worker
-- KEEPS 3
-- USES clock

-- Rates older than this are no rates.
local RATES_MS = 10000

local function book(slug, name, by)
  redis.call('HINCRBY', k_books .. slug, name, by)
end

-- A weight in thousandths as a policy may have it. None, and one that somebody spoiled, is 1: a division by it, or its
-- sum with others, would end a script between its writes.
local function weight_in(held)
  local milli = tonumber(held or 1000) or 0
  return milli >= 1 and milli <= 1000000 and math.floor(milli) or 1000
end

-- How long jobs run and what they cost, smoothed: the first as it is, then an eighth of each difference.
local function smooth(slug, run_ms, cost_mwt)
  local before = redis.call('HMGET', k_books .. slug, 'run_ms', 'mean_mwt')
  local run, mean = tonumber(before[1] or nil), tonumber(before[2] or nil)
  redis.call('HSET', k_books .. slug, 'run_ms', whole(run and run + (run_ms - run) / 8 or run_ms),
    'mean_mwt', whole(mean and mean + (cost_mwt - mean) / 8 or cost_mwt))
end

-- Slots and rates of a pool out of its live workers' heartbeats: slots and mu add up, the others are means.
local function gather_rates(slug, now_ms)
  local slots, mu, prefill, tpot, rated = 0, 0, 0, 0, 0
  local live = redis.call('ZREVRANGEBYSCORE', k_pool .. slug, '+inf', now_ms - LIVE_MS, 'LIMIT', 0, 64)
  for i = 1, #live do
    local told = redis.call('HMGET', k_worker .. live[i], 'slots', 'mu_wtps', 'prefill_tps', 'tpot_ms')
    slots = slots + (tonumber(told[1] or 0) or 0)
    local m, p, t = tonumber(told[2] or 0) or 0, tonumber(told[3] or 0) or 0, tonumber(told[4] or 0) or 0
    if m > 0 and p > 0 and t > 0 then
      mu, prefill, tpot, rated = mu + m, prefill + p, tpot + t, rated + 1
    end
  end
  redis.call('HSET', k_books .. slug, 'slots', slots)
  if rated > 0 then
    redis.call('HSET', k_books .. slug, 'mu_wtps', mu, 'prefill_tps', prefill / rated, 'tpot_ms', tpot / rated,
      'rates_ms', now_ms)
  end
end
