-- history: counts what happens until the script history_point writes it into the points of the history.
-- KEYS history_now
-- USES clock
-- A field is `<what>|<tenant>|<slug>`. The counts are admitted, refused.<reason>, those of lib/ledgers/usage.lua
-- (succeeded, failed, canceled, expired, prompt, cached, completion, cost_micro), pauses, and first.<bucket>: the jobs
-- whose first token came in this bucket of times after their admission. They cost an admission one command of about 88,
-- a refusal one of 25, and the end of a job five or six of 60 (bench.queue_costs).

-- The field with about how many bytes the others take, which are their names and as many more each, and the most bytes.
-- If thousands of tenants need more in ten seconds, the counts of those that come last are summed up.
local BYTES = 'bytes'
local BYTES_OF_FIELD, MAX_NOW_BYTES = 110, 2359296
-- No tenant can have this name. shared/history/points.py knows it.
local OTHER_TENANTS = '(other)'
-- If no process writes points, the counts are kept for this long after the first of them.
local NOW_TTL_S = 86400
-- A bucket holds the times up to 2^(bucket / 4) ms, which are at most 19 % apart.
local BUCKETS_IN_OCTAVE, LAST_FIRST_BUCKET = 4, 80

local function count_in_history(tenant, slug, what, by)
  local field = what .. '|' .. tenant .. '|' .. slug
  -- A new field.
  if by ~= 0 and redis.call('HINCRBY', k_history_now, field, whole(by)) == by then
    local more = #field + BYTES_OF_FIELD
    local bytes = redis.call('HINCRBY', k_history_now, BYTES, more)
    if bytes == more then
      redis.call('EXPIRE', k_history_now, NOW_TTL_S)
    elseif bytes > MAX_NOW_BYTES and tenant ~= OTHER_TENANTS then
      redis.call('HDEL', k_history_now, field)
      redis.call('HINCRBY', k_history_now, BYTES, -more)
      redis.call('HINCRBY', k_history_now, what .. '|' .. OTHER_TENANTS .. '|' .. slug, whole(by))
    end
  end
end

-- Counts the time from a job's admission to its first token.
local function count_first_token(tenant, slug, ms)
  local bucket = math.ceil(BUCKETS_IN_OCTAVE * math.log(math.max(1, ms)) / math.log(2) - 1e-9)
  count_in_history(tenant, slug, 'first.' .. math.min(LAST_FIRST_BUCKET, bucket), 1)
end
