-- crashes: remembers which workers of a pool ended because of a fault, or were silent without a farewell.
-- KEYS crashes worker workers
-- USES clock stats
-- A field is a worker's name. Its value is when it ended, how many ms it had lived (-1 if unknown) and why, separated
-- by spaces. shared/store/crashes.py reads the same.
local CRASHES_TTL_MS, MAX_CRASHES = 900000, 32
-- The reason of a worker that gave none.
local SILENT = 'without a farewell'
-- Workers restart again and again if this many of a pool have ended so recently after so short a life.
local MANY_CRASHES, RECENT_MS, SHORT_LIFE_MS = 3, 600000, 120000

local function note_crash(slug, name, ended_ms, why)
  local key, oldest, oldest_ms = k_crashes .. slug, nil, math.huge
  if redis.call('HLEN', key) >= MAX_CRASHES then
    local noted = redis.call('HGETALL', key)
    for i = 1, #noted, 2 do
      local noted_ms = number(string.match(noted[i + 1], '^%d+'), 0)
      if noted_ms < oldest_ms then
        oldest, oldest_ms = noted[i], noted_ms
      end
    end
    redis.call('HDEL', key, oldest)
  end
  local since_ms = number(redis.call('HGET', k_worker .. name, 'since_ms'), nil, 0, ended_ms)
  redis.call('HSET', key, name, digits(ended_ms) .. ' ' .. digits(since_ms and ended_ms - since_ms or -1) .. ' ' .. why)
  redis.call('PEXPIRE', key, CRASHES_TTL_MS)
end

-- Counts a crash. A worker that has fallen silent is counted when a lease of it ends: before, it may come back.
local function count_crash(model)
  stats.count('crashes|' .. model)
end

-- Whether a worker has sent no heartbeat for as long as a lease.
local function is_silent(worker, lease_ms)
  return number(redis.call('ZSCORE', k_workers, worker), 0, 0) <= now_ms - lease_ms
end

-- Counts the crash of a silent worker with the lease of its job, unless it has ended by a fault, which was counted
-- then.
local function count_silence(job)
  local key = k_crashes .. job.slug
  local noted = redis.call('HGET', key, job.worker)
  if not noted then
    note_crash(job.slug, job.worker, now_ms, SILENT)
  end
  if not noted or string.find(noted, SILENT .. '$') then
    count_crash(redis.call('HGET', k_worker .. job.worker, 'model') or job.model)
  end
end

-- Forgets a worker that had only been silent.
local function forget_crash(slug, name)
  redis.call('HDEL', k_crashes .. slug, name)
end

-- Returns for how many ms a worker of a pool counts as new: twice as long as those lived that restart again and again,
-- and 0 if none do.
local function ms_of_a_new_worker(slug)
  local crashes, longest_ms = 0, 0
  for _, crash in ipairs(redis.call('HVALS', k_crashes .. slug)) do
    local ended_ms, life_ms = string.match(crash, '^(%d+) (%d+) ')
    life_ms = number(life_ms, SHORT_LIFE_MS)
    if number(ended_ms, 0) >= now_ms - RECENT_MS and life_ms < SHORT_LIFE_MS then
      crashes, longest_ms = crashes + 1, math.max(longest_ms, life_ms)
    end
  end
  return crashes >= MANY_CRASHES and math.min(2 * longest_ms, SHORT_LIFE_MS) or 0
end
