-- rq: writes RQ's lists and sets, and formats values as RQ does.
-- KEYS rq_queues rq_queue rq_wip
-- KEEPS 8

-- Formats the day of a time in ms, in UTC. The date is computed with Howard Hinnant's civil_from_days algorithm. Most
-- times that a script formats are of one day.
local last_day, last_date
local function date_of(ms)
  local shifted = math.floor(ms / 86400000) + 719468
  if shifted == last_day then
    return last_date
  end
  local era = math.floor(shifted / 146097)
  local day_of_era = shifted - era * 146097
  local year_of_era = math.floor((day_of_era - math.floor(day_of_era / 1460) + math.floor(day_of_era / 36524)
    - math.floor(day_of_era / 146096)) / 365)
  local day_of_year = day_of_era - (365 * year_of_era + math.floor(year_of_era / 4) - math.floor(year_of_era / 100))
  local month_index = math.floor((5 * day_of_year + 2) / 153)
  local day = day_of_year - math.floor((153 * month_index + 2) / 5) + 1
  local month = month_index < 10 and month_index + 3 or month_index - 9
  last_day = shifted
  last_date = string.format('%04d-%02d-%02d', year_of_era + era * 400 + (month <= 2 and 1 or 0), month, day)
  return last_date
end

-- Formats a time in ms as RQ's utcformat does.
local function iso(ms)
  local second_of_day = math.floor(ms / 1000) % 86400
  return date_of(ms) .. string.format('T%02d:%02d:%02d.%03d000Z', math.floor(second_of_day / 3600),
    math.floor(second_of_day % 3600 / 60), second_of_day % 60, ms % 1000)
end

-- Returns the exc_string of an RQ result for an error code, or nil for an unknown code. RQ expects the text compressed
-- with zlib and encoded in base64. Lua in Redis cannot do that, so the encoded form of each 'penstock: <code>' is a
-- constant.
local function rq_exc(code)
  local encoded = {
    deadline_exceeded = 'eJwrSM0rLslPzrZSSElNTMnJzEuNT61ITk1NSU0BAJPhCo4=',
    deadline_unmeetable = 'eJwrSM0rLslPzrZSSElNTMnJzEuNL83LTU0tSUzKSQUAqwoLeQ==',
    canceled = 'eJwrSM0rLslPzrZSSE7MS07NSU0BAEMoBvE=',
    abandoned = 'eJwrSM0rLslPzrZSSExKzEvJz0tNAQBKfgde',
    superseded = 'eJwrSM0rLslPzrZSKC4tSC0qTk1JTQEAVBsH9g==',
    unheard = 'eJwrSM0rLslPzrZSKM3LSE0sSgEAPOwGqQ==',
    context_length_exceeded = 'eJwrSM0rLslPzrZSSM7PK0mtKInPSc1LL8mIT61ITk1NSU0BAOCmDT4=',
    unsupported_parameter = 'eJwrSM0rLslPzrZSKM0rLi0oyC8qSU2JL0gsSsxNLUktAgDJJgyr',
    invalid_value = 'eJwrSM0rLslPzrZSyMwrS8zJTIkHkqWpAG1yCSU=',
    poison = 'eJwrSM0rLslPzrZSKMjPLM7PAwA2cAZa',
    corrupt = 'eJwrSM0rLslPzrZSSM4vKiotKAEAPSIG0Q==',
    engine_error = 'eJwrSM0rLslPzrZSSM1Lz8xLjU8tKsovAgBj6QjB',
    upstream_rejected = 'eJwrSM0rLslPzrZSKC0oLilKTcyNL0rNSk0uSU0BAJe0Ctg=',
    embeddings_unsupported = 'eJwrSM0rLslPzrZSSM1NSk1JycxLL44vzSsuLSjILypJTQEA0hAM/A==',
    not_local = 'eJwrSM0rLslPzrZSyMsvic/JT07MAQBLjQd9',
    upstream_busy = 'eJwrSM0rLslPzrZSKC0oLilKTcyNTyotrgQAbtQJVQ==',
    load_failed = 'eJwrSM0rLslPzrZSyMlPTIlPS8zMSU0BAFqhCCY=',
    upstream_lost = 'eJwrSM0rLslPzrZSKC0oLilKTcyNz8kvLgEAbuUJVA==',
  }
  return encoded[code]
end

-- A running job's score in RQ's set of started jobs is this many seconds in the future. That is later than any lease or
-- deadline, so that RQ's own cleanup, which takes no lock, never moves a running job.
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
