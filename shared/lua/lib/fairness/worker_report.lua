-- worker_report: takes a worker's report of its jobs: charges their tenants, and follows the worker's pauses.
-- KEYS order
-- KEEPS 1 3 7
-- USES clock settings job_record turns running progress pausing turnover preempt generated_weight

-- The most slots of a worker whose record has no number of them.
local MAX_SLOTS = 4096

-- Returns how long the rest of a job's answer is expected to take: the estimated length or, for a longer answer, half
-- of the remaining max_tokens.
local function left_ms_of(job, generated_tokens, tpot_ms)
  local weight_milli = generated_weight.cost_of(job, 0, 1)
  local limit = job.cut_tokens > 0 and job.cut_tokens or job.max_tokens
  local expected = math.min(limit, (job.cost_mwt - 1000 * job.prompt_tokens) / weight_milli)
  local left_tokens = expected > generated_tokens and expected - generated_tokens or (limit - generated_tokens) / 2
  return math.max(0, left_tokens) * tpot_ms
end

-- Sorts entries by a time of their jobs and, if it is the same, by id.
local function sort_by(entries, time)
  table.sort(entries, function(one, other)
    local first_ms, second_ms = one.job[time], other.job[time]
    return first_ms < second_ms or first_ms == second_ms and one.job.id < other.job.id
  end)
end

-- A line of a worker's report has five values of a job: id, claim token, tokens, CPU tokens, and ms since the job got
-- its slot, or -1 if it is paused. One text costs the store much less than hundreds of arguments.
local HELD_LINE = '(%S+) (%S+) (%d+) (%d+) (%-?%d+)\n'

-- Reads the report `held`. `fields` are those of the worker's record. Returns the ids of the jobs that the worker has
-- `lost`; the `jobs` that compute, and of these the ones that are not canceled as entries (`computing`), the longest
-- time of one in its slot and whether one is a batch job; the entries of the `paused` jobs of each tenant, the longest
-- pause first, and their number; and the worker's `slots`. A job that is claimed for a slot which becomes free soon
-- counts beside the one that still has the slot. The report of a worker wins over the record: a worker resumes jobs
-- without being told if the store is away.
local function take_report(worker, held, room, fields, charges_all, charges_tokens)
  local report = { lost = {}, jobs = {}, computing = {}, longest_ms = 0, has_batch = false, paused = {},
    paused_jobs = 0, slots = 0 }
  for id, token, tokens, cpu_tokens, slot_ms in string.gmatch(held, HELD_LINE) do
    local job, in_slot_ms = job_record.read_held(id, token, worker), number(slot_ms, -1)
    if not job then
      report.lost[#report.lost + 1] = id
    else
      local generated_tokens = number(tokens, 0)
      if charges_tokens then
        progress.charge_progress(job, generated_tokens, number(cpu_tokens, 0), charges_all)
      end
      if in_slot_ms < 0 and job.paused_since_ms == 0 then
        running.pause(job)
      elseif in_slot_ms >= 0 and job.paused_since_ms > 0 then
        running.resume(job)
      end
      local entry = { job = job, in_slot_ms = in_slot_ms, generated_tokens = generated_tokens,
        left_ms = left_ms_of(job, generated_tokens, number(fields.tpot_ms, 0, 0)) }
      if in_slot_ms < 0 then
        -- The set may lack the tenant if another program changed it.
        turns.activate(job.tenant, job.slug, job.priority < 0, true)
        report.paused[job.tenant] = report.paused[job.tenant] or {}
        table.insert(report.paused[job.tenant], entry)
        report.paused_jobs = report.paused_jobs + 1
      else
        report.jobs[#report.jobs + 1] = job
        if job.cancel == '' then
          table.insert(report.computing, entry)
          report.longest_ms = math.max(report.longest_ms, in_slot_ms)
          report.has_batch = report.has_batch or job.priority < 0
        end
      end
    end
  end
  for _, entries in pairs(report.paused) do
    sort_by(entries, 'paused_since_ms')
  end
  report.slots = math.min(room + #report.jobs, number(fields.slots, MAX_SLOTS, 1))
  return report
end

-- Returns `report`, `seen` and `decided` (lib/fairness/preempt.lua) of a worker; `seen` is nil without preemption.
-- `fields` are those of the worker's record: its slots, ms per token, weighted tokens per second and generated tokens
-- per second.
local function open_exchange(worker, slug, held, room, fields)
  local counts_turns, quantum_ms = settings.read_setting('fairness') == 'turns', settings.read_setting('quantum_ms')
  local preempts, seen = pausing.is_preemptive(), nil
  local report = take_report(worker, held, room, fields, preempts, not counts_turns)
  if preempts then
    progress.follow_service(slug, report.jobs)
    local pool_slots = preempt.slots_of_pool(slug)
    local quantum_mwt = preempt.quantum_mwt_of(slug, quantum_ms, report.slots, fields.mu_wtps, fields.generated_tps)
    local freed = turnover.count_freed(report, quantum_ms, pool_slots)
    turnover.note_freed(slug, freed)
    seen = preempt.open_seen(report, slug, quantum_ms, quantum_mwt, counts_turns, pool_slots,
      turnover.is_often(freed))
  end
  return report, seen, preempt.open_decided(report, seen)
end

-- Stores by when a worker claims again by itself, if it does, and whether it may pause no further job:
-- lib/pools/doorbell.lua wakes it only if that can be of use. `before` is the stored time.
local function note_next_claim(worker_key, before, seen, decided, ask_in_ms)
  if ask_in_ms >= 0 then
    redis.call('HSET', worker_key, 'asks_by_ms', now_ms + ask_in_ms,
      'crowded', decided.paused_jobs >= seen.most_paused and 1 or 0)
  elseif before then
    redis.call('HDEL', worker_key, 'asks_by_ms', 'crowded')
  end
end

-- Returns the first batch job among a tenant's entries whose jobs are still paused (or the first other job, if
-- `is_batch` is false), or nil.
local function first_of_kind(entries, is_batch)
  for _, entry in ipairs(entries or {}) do
    if preempt.is_paused(entry) and (entry.job.priority < 0) == is_batch then
      return entry
    end
  end
end

-- Whether a paused job waits until the head of its tenant's queue has started: the head would be late after the rest of
-- the paused job, which itself can wait for a quantum.
local function waits_for_head(seen, entry, slug)
  local id = redis.call('ZRANGE', k_order .. entry.job.tenant .. '.' .. slug, 0, 0)[1]
  local head = id and job_record.read_job(id)
  local quantum_ms = seen and seen.quantum_ms or 0
  return head and (head.priority < 0) == (entry.job.priority < 0)
    and head.latest_us < 1000 * (now_ms + entry.left_ms)
    and entry.job.deadline_ms - entry.left_ms > now_ms + quantum_ms or false
end

-- Returns the entries of the paused jobs that are resumed before all others, because they would be late after another
-- quantum. The one with the earliest deadline is first.
local function urgent_ones(report, quantum_ms)
  local urgent = {}
  for _, entries in pairs(report.paused) do
    for _, entry in ipairs(entries) do
      if entry.job.priority >= 0 and entry.job.cancel == '' and preempt.is_urgent(entry, quantum_ms) then
        urgent[#urgent + 1] = entry
      end
    end
  end
  sort_by(urgent, 'deadline_ms')
  return urgent
end
