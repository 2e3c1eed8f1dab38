-- repair: makes stored values agree with true ones, and counts what had to be changed.
-- KEYS
-- USES clock
-- The scripts that repair the store use this file; `repairs.made` is the number of repairs that a call has made.
local repairs = { made = 0 }

local function note_repairs(made)
  repairs.made = repairs.made + made
end

-- Sets fields of a hash that are numbers to their true values. A missing field counts as 0.
local function correct_fields(key, true_values)
  for name, value in pairs(true_values) do
    if number(redis.call('HGET', key, name) or '0') ~= value then
      redis.call('HSET', key, name, whole(value))
      note_repairs(1)
    end
  end
end

local function correct_score(key, score, member)
  if number(redis.call('ZSCORE', key, member)) ~= score then
    redis.call('ZADD', key, whole(score), member)
    note_repairs(1)
  end
end
