-- turnover: counts how many slots of a pool became free lately because the jobs in them ended.
-- KEYS books
-- USES clock settings
-- docs/adr/0088-when-a-running-job-is-paused.md gives the reasons.

-- The time in which slots are counted, as a part of a quantum.
local TURNOVER_PART = 0.5
-- With as many as this, one becomes free in a quarter of a quantum, for which a job keeps its slot in any case.
local OFTEN = 2

-- Returns how many slots of a pool with `pool_slots` slots became free in the last half of a quantum and went to other
-- owners than the one that got the most: one that fills the slots of its own short jobs frees none for others. The
-- number is extrapolated from the report of one worker: its jobs that got a slot in that time, less those that got it
-- by a pause.
local function count_freed(report, quantum_ms, pool_slots)
  local period_ms, got, freed, most = TURNOVER_PART * quantum_ms, {}, 0, 0
  for _, entry in ipairs(report.computing) do
    if entry.in_slot_ms < period_ms then
      local owner = entry.job.group ~= '' and entry.job.group or entry.job.tenant
      got[owner] = (got[owner] or 0) + 1
      freed, most = freed + 1, math.max(most, got[owner])
    end
  end
  for _, of_tenant in pairs(report.paused) do
    for i = 1, #of_tenant do
      freed = freed - (now_ms - of_tenant[i].job.paused_since_ms < period_ms and 1 or 0)
    end
  end
  return math.floor(math.max(0, freed - most) * math.max(report.slots, pool_slots) / math.max(1, report.slots))
end

-- Whether a tenant soon gets a slot without a pause.
local function is_often(freed)
  return freed >= OFTEN
end

-- Stores the number and its time; admission uses them to predict how long a job waits.
local function note_freed(slug, freed)
  redis.call('HSET', k_books .. slug, 'freed', freed, 'freed_ms', whole(now_ms))
end

-- Whether slots of a pool have become free often, as counted in the last half of a quantum. A worker claims whenever a
-- slot becomes free, but not while it is full and nothing is queued: its earlier counts are then out of date.
local function was_often(slug)
  local noted, quantum_ms = read_fields(k_books .. slug, { 'freed', 'freed_ms' }),
    settings.read_setting('quantum_ms')
  return is_often(number(noted.freed, 0, 0))
    and now_ms - number(noted.freed_ms, 0, 0, now_ms) < TURNOVER_PART * quantum_ms
end
