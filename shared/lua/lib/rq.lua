-- rq: what RQ wants written in its own form.
-- KEYS rq_queues rq_queue rq_wip
-- KEEPS 8

-- Moments as RQ's utcformat writes them. The civil date is Howard Hinnant's days-to-civil algorithm.
local function iso(ms)
  local seconds = math.floor(ms / 1000)
  local days = math.floor(seconds / 86400)
  local rest = seconds - days * 86400
  local shifted = days + 719468
  local era = math.floor(shifted / 146097)
  local day_of_era = shifted - era * 146097
  local year_of_era = math.floor((day_of_era - math.floor(day_of_era / 1460) + math.floor(day_of_era / 36524)
    - math.floor(day_of_era / 146096)) / 365)
  local day_of_year = day_of_era - (365 * year_of_era + math.floor(year_of_era / 4) - math.floor(year_of_era / 100))
  local month_index = math.floor((5 * day_of_year + 2) / 153)
  local day = day_of_year - math.floor((153 * month_index + 2) / 5) + 1
  local month = month_index < 10 and month_index + 3 or month_index - 9
  local year = year_of_era + era * 400 + (month <= 2 and 1 or 0)
  return string.format('%04d-%02d-%02dT%02d:%02d:%02d.%03d000Z', year, month, day, math.floor(rest / 3600),
    math.floor(rest % 3600 / 60), rest % 60, ms % 1000)
end

-- RQ reads a result's exc_string as base64 of zlib, which Lua here cannot make: 'penstock: <code>', made once.
local function rq_exc(code)
  local made = {
    deadline_exceeded = 'eJwrSM0rLslPzrZSSElNTMnJzEuNT61ITk1NSU0BAJPhCo4=',
    deadline_unmeetable = 'eJwrSM0rLslPzrZSSElNTMnJzEuNL83LTU0tSUzKSQUAqwoLeQ==',
    canceled = 'eJwrSM0rLslPzrZSSE7MS07NSU0BAEMoBvE=',
    abandoned = 'eJwrSM0rLslPzrZSSExKzEvJz0tNAQBKfgde',
    superseded = 'eJwrSM0rLslPzrZSKC4tSC0qTk1JTQEAVBsH9g==',
    unheard = 'eJwrSM0rLslPzrZSKM3LSE0sSgEAPOwGqQ==',
    context_length_exceeded = 'eJwrSM0rLslPzrZSSM7PK0mtKInPSc1LL8mIT61ITk1NSU0BAOCmDT4=',
    invalid_value = 'eJwrSM0rLslPzrZSyMwrS8zJTIkHkqWpAG1yCSU=',
    poison = 'eJwrSM0rLslPzrZSKMjPLM7PAwA2cAZa',
    corrupt = 'eJwrSM0rLslPzrZSSM4vKiotKAEAPSIG0Q==',
    engine_error = 'eJwrSM0rLslPzrZSSM1Lz8xLjU8tKsovAgBj6QjB',
  }
  return made[code]
end

-- Far beyond any lease and deadline, so that RQ's own unlocked cleanup never moves what runs.
local RQ_WIP_SCORE_S = 7 * 86400

local function rq_enlist(queue, id, before)
  if before then
    redis.call('LINSERT', k_rq_queue .. queue, 'BEFORE', before, id)
  else
    redis.call('RPUSH', k_rq_queue .. queue, id)
  end
  redis.call('SADD', k_rq_queues, k_rq_queue .. queue)
end

local function rq_start(queue, id, token, now_ms)
  redis.call('ZADD', k_rq_wip .. queue, math.floor(now_ms / 1000) + RQ_WIP_SCORE_S, id .. ':' .. token)
end

local function rq_stop(queue, id, token)
  redis.call('ZREM', k_rq_wip .. queue, id .. ':' .. token)
end
