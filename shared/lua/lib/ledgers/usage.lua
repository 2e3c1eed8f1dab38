-- usage: counts the jobs that have ended, their tokens and the cost of these, by day, tenant, API key and model.
-- KEYS usage
-- USES clock rq history
-- Each day (UTC by the store's clock) has a hash. A field of it is a series, `<tenant>|<label of the key>|<model>`,
-- whose value has the numbers AMOUNTS, separated by spaces. The field `total` has their sums over all series of the
-- day, which `penstock doctor` compares. shared/accounts/usage.py reads both.
local AMOUNTS = { 'succeeded', 'failed', 'canceled', 'expired', 'prompt', 'cached', 'completion', 'cost_micro' }
-- The hash of a day is kept for this long after its first change: 400 days after the day has passed.
local USAGE_TTL_S = 401 * 86400
-- The most series of a day. Further series are counted together in the series OTHER, which no tenant can have.
local MAX_SERIES = 10000
local OTHER = '(other)||(other)'
local TOTAL = 'total'
-- The largest number that is believed.
local MAX_USAGE = 1e15

-- Returns the day of the store's time, such as 2026-11-23.
local function today()
  return rq.date_of(now_ms)
end

-- Returns the numbers in a field, with those of `added`, by their names, as text. Numbers beyond AMOUNTS, which a newer
-- version may have written, stay.
local function with_added(stored, added)
  local numbers = {}
  for word in string.gmatch(stored or '', '%S+') do
    local name = AMOUNTS[#numbers + 1]
    local by = name and added[name] or 0
    -- Most amounts do not change, and a short text of digits needs no conversion.
    if by ~= 0 or #word > 15 or string.find(word, '%D') then
      word = digits(number(word, 0, 0, MAX_USAGE) + by)
    end
    numbers[#numbers + 1] = word
  end
  for i = #numbers + 1, #AMOUNTS do
    numbers[i] = digits(added[AMOUNTS[i]] or 0)
  end
  return table.concat(numbers, ' ')
end

-- Adds amounts, by their names, to the series of a job, to the day's total and to the history.
local function add_usage(job, added)
  local key = k_usage .. today()
  local label = string.gsub(job.key_label, '[%%|]', { ['%'] = '%25', ['|'] = '%7C' })
  local series = job.tenant .. '|' .. label .. '|' .. job.model
  local held = read_fields(key, { series, TOTAL })
  if not held[series] and redis.call('HLEN', key) > MAX_SERIES then
    series = OTHER
    held[series] = redis.call('HGET', key, series)
  end
  redis.call('HSET', key, series, with_added(held[series], added), TOTAL, with_added(held[TOTAL], added))
  if not held[TOTAL] then
    redis.call('EXPIRE', key, USAGE_TTL_S)
  end
  for name, by in pairs(added) do
    history.count_in_history(job.tenant, job.slug, name, by)
  end
end
