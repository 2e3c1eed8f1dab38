-- preempt: chooses the running job of a worker that gives its slot to another tenant.
-- KEYS active batch tenant books
-- USES clock pool_record service priority slots_in_use generated_weight
-- docs/fairness.md explains the rules. A claim keeps three tables about the jobs that its worker has, and a function
-- takes those that it needs, in this order:
--   report: what the worker reported (lib/fairness/worker_report.lua); never written after it is made
--   seen: what the store says, as `open_seen` makes it; never written after it is made
--   decided: which jobs have the slots, as `open_decided` makes it: at first those of the report; only this file and
--     claim.lua write it, when slots change hands

-- A job keeps its slot for this part of a quantum before one of a tenant with fewer slots than its share takes it.
local EARLY_PART = 0.25
-- A tenant takes turns with another one that leads by this part of a quantum of service. A quantum is converted to
-- weighted tokens with the measured rate, which may be too high by a quarter.
local LEAD_PART = 0.75
-- In a pool of many slots one is free more often, and the lead is this part of a quantum for each slot but the first.
local LEAD_PART_OF_SLOT = 0.25
-- A job that would miss its deadline by the pause keeps its slot until its tenant leads by this many times as much.
local RISK_FACTOR = 4
-- Each paused job makes the others later. A worker may pause as many jobs as it has slots, less this many for each
-- tenant that wants slots, but PAUSED_PART of its slots and MIN_PAUSED in any case. The figures are from
-- docs/fairness.md.
local SLOTS_OF_TENANT, PAUSED_PART, MIN_PAUSED = 4, 0.25, 4
-- The rate of a slot whose worker reports none, in thousandths of a weighted token per ms: 25 generated tokens a
-- second.
local USUAL_SLOT_RATE = 100

-- Returns the work of one slot of a worker in a quantum, in thousandths of a weighted token.
local function quantum_mwt_of(slug, quantum_ms, slots, mu_wtps, generated_tps)
  local mu_milli = generated_weight.mu_with_weight(slug, 1000 * number(mu_wtps, 0, 0), 1000 * number(generated_tps, 0,
    0))
  return quantum_ms * (mu_milli > 0 and slots > 0 and mu_milli / slots / 1000 or USUAL_SLOT_RATE)
end

-- Returns the facts about an owner: the number of its slots in the pool, its weight, and its service in thousandths of
-- a weighted token divided by the weight. One that wants no slots has at least the service with which it would enter
-- its set. `young` is the work that its jobs which got their slots less than a quantum ago may still receive in that
-- time.
local function contender(seen, decided, owner, group)
  local known = decided.owners[owner]
  if not known then
    local slug = seen.slug
    local service = number(redis.call('ZSCORE', k_active .. slug .. group, owner)
      or redis.call('ZSCORE', k_batch .. slug .. group, owner), nil, service.MIN_SERVICE_MWT)
      or math.max(service.virtual_time_of(slug, group),
        number(redis.call('HGET', k_tenant .. owner, 's|' .. slug), 0, service.MIN_SERVICE_MWT))
    known = { slots = slots_in_use.rows_of(slug, 'c', owner), service = service, young = 0,
      weight = pool_record.weight_in(redis.call('HGET', k_tenant .. owner, 'policy_weight_milli')) / 1000 }
    decided.owners[owner] = known
  end
  return known
end

local function owner_of(tenant, group)
  return group ~= '' and group or tenant
end

-- Returns the contenders for which a tenant's job counts: the group or the tenant in the pool's set, and the tenant in
-- the set of its group.
local function contenders(seen, decided, tenant, group)
  if group == '' then
    return { contender(seen, decided, tenant, '') }
  end
  return { contender(seen, decided, group, ''), contender(seen, decided, tenant, group) }
end

-- Adds a job to those that compute. `sides` are the contenders for which it counts, and `more` is 1 if they do not
-- count its slot yet.
local function add_computing(seen, decided, job, group, more, in_slot_ms, left_ms, rank)
  local entry = { job = job, in_slot_ms = in_slot_ms, left_ms = left_ms, rank = rank,
    sides = contenders(seen, decided, job.tenant, group) }
  local young_mwt = seen.young_mwt * math.max(0, 1 - in_slot_ms / seen.quantum_ms)
  for _, side in ipairs(entry.sides) do
    side.slots, side.young = side.slots + more, side.young + young_mwt / side.weight
  end
  table.insert(decided.computing, entry)
  decided.limits = nil
end

local function give_slot(seen, decided, job, group)
  add_computing(seen, decided, job, group, 1, 0, 0, 0)
end

-- Notes that the job of an entry loses its slot. The caller pauses it.
local function take_slot(decided, victim)
  for _, side in ipairs(victim.sides) do
    side.slots = side.slots - 1
  end
  decided.limits = nil
end

-- Whether the job of an entry is paused now, and not only when the worker reported it.
local function is_paused(entry)
  return entry.job.paused_since_ms > 0
end

local function slots_of_pool(slug)
  return number(redis.call('HGET', k_books .. slug, 'slots'), 0, 0)
end

-- Returns by how many quanta of service a tenant must lead before another one takes its turn. `starts_first` is true if
-- the other has nothing that runs.
local function lead_part_of(slots, starts_first)
  local part = LEAD_PART_OF_SLOT * math.max(0, slots - 1)
  return starts_first and part or math.max(LEAD_PART, part)
end

-- Returns how many paused jobs a worker may hold, or all workers with the slots `slots` together.
local function most_paused(slug, slots, pool_slots)
  local wanted = SLOTS_OF_TENANT * redis.call('ZCARD', k_active .. slug) / math.max(1, slots, pool_slots)
  return math.min(slots, math.max(MIN_PAUSED, math.ceil(slots * math.max(PAUSED_PART, 1 - wanted))))
end

-- Whether a job would miss its deadline if it waited for a quantum from now on.
local function is_urgent(entry, quantum_ms)
  return now_ms + quantum_ms + entry.left_ms > entry.job.deadline_ms
end

-- Returns what the store says about a pool with `slots` slots. In turns mode a job is one unit of service, whatever it
-- takes. `frees_slots` is true if slots often become free without a pause. `young_mwt` is the work of a slot in a
-- quantum.
local function open_seen(report, slug, quantum_ms, quantum_mwt, counts_turns, slots, frees_slots)
  return { slug = slug, quantum_ms = quantum_ms, frees_slots = frees_slots, counts_turns = counts_turns,
    lead_mwt = counts_turns and 1000 or lead_part_of(slots, false) * quantum_mwt,
    first_lead_mwt = counts_turns and 0 or lead_part_of(slots, true) * quantum_mwt,
    young_mwt = counts_turns and 0 or quantum_mwt, most_paused = most_paused(slug, report.slots, slots) }
end

-- Returns the table of decisions at the beginning of a claim: `computing` has the jobs that compute, as `add_computing`
-- makes them, `owners` the contenders by name, and `limits` what `limits_of` has found; `paused_jobs` is a number.
-- Without `seen` nobody's slots change hands.
local function open_decided(report, seen)
  local decided = { computing = {}, owners = {}, limits = nil, paused_jobs = report.paused_jobs }
  for _, entry in ipairs(seen and report.computing or {}) do
    -- The pause of a job that is nearly done gains little, and a job that cannot afford to wait is paused last.
    local rank = is_urgent(entry, seen.quantum_ms) and 2 or entry.left_ms <= seen.quantum_ms and 1 or 0
    add_computing(seen, decided, entry.job, entry.job.group, 0, entry.in_slot_ms, entry.left_ms, rank)
  end
  return decided
end

-- Returns two contenders, from the first set in which they differ: the one that would give the slot of a job, which
-- counts for `has`, and the one that would get it, of `wants`. Returns nil if both jobs belong to the same tenant.
local function opponents(job, has, tenant, wants)
  if job.tenant == tenant then
    return nil
  elseif has[1] ~= wants[1] then
    return has[1], wants[1]
  end
  return has[2], wants[2]
end

-- Whether the job of an entry gives its slot. Rule 2 of docs/fairness.md: the other has fewer slots than its share and
-- would not have more than this one afterwards, and does not lead in service. This rule is left out where slots often
-- become free. Rule 3: the job has had its slot for a quantum, and its owner leads in service. If the other has nothing
-- that runs (`starts_first`), a smaller lead is enough, on one slot any: a newcomer enters with the service of the
-- others, so it would otherwise wait until they have got that lead, again for each job that comes when its last one has
-- ended. A job that would miss its deadline gives its slot only by rule 3, and only to one that its owner leads by far:
-- the work on it would be lost.
local function gives_slot(seen, has, wants, entry, starts_first)
  local is_risky = entry.rank == 2
  if not seen.frees_slots and not is_risky and (has.slots - 1) * wants.weight > wants.slots * has.weight
    and entry.in_slot_ms >= EARLY_PART * seen.quantum_ms
    and wants.service <= has.service + seen.lead_mwt / wants.weight then
    return true
  end
  local lead_mwt = is_risky and RISK_FACTOR * seen.lead_mwt
    or starts_first and wants.slots == 0 and seen.first_lead_mwt or seen.lead_mwt
  return entry.in_slot_ms >= seen.quantum_ms and has.service > wants.service + wants.young + lead_mwt / has.weight
end

-- Whether the first of two entries gives its slot rather than the second. An entry of the owner with the most slots for
-- its weight gives first, and among those the entry that loses least. `order` lists the compared values; the smaller
-- ones come first.
local function is_before(order, other)
  for i = 1, #order do
    if order[i] ~= other[i] then
      return order[i] < other[i]
    end
  end
  return false
end

-- Whether a job has had its slot for long enough to give it to a tenant with fewer slots than its share.
local function has_run(seen, in_slot_ms)
  return in_slot_ms >= EARLY_PART * seen.quantum_ms
end

-- Returns, by set, the highest values of all owners of jobs that may give their slots: `slots` (all but one, divided by
-- the weight), `service` and `weight`. So a tenant that can get no slot from them is not compared with each of their
-- jobs.
local function limits_of(seen, decided)
  if not decided.limits then
    decided.limits = {}
    for i = 1, #decided.computing do
      local entry = decided.computing[i]
      local may_give = not is_paused(entry) and has_run(seen, entry.in_slot_ms)
      for level, has in ipairs(may_give and entry.sides or {}) do
        local set = level == 1 and '' or entry.job.group
        local limits = decided.limits[set] or { slots = 0, service = has.service, weight = 0 }
        limits.slots = math.max(limits.slots, (has.slots - 1) / has.weight)
        limits.service = math.max(limits.service, has.service)
        limits.weight = math.max(limits.weight, has.weight)
        decided.limits[set] = limits
      end
    end
  end
  return decided.limits
end

-- Whether `gives_slot` can be true for a job of an owner within the limits.
local function is_within(seen, limits, wants)
  local lead_mwt = wants.slots == 0 and seen.first_lead_mwt or seen.lead_mwt
  return not seen.frees_slots and limits.slots > wants.slots / wants.weight
      and wants.service <= limits.service + seen.lead_mwt / wants.weight
    or limits.service > wants.service + wants.young + lead_mwt / limits.weight
end

local function may_get_slot(seen, decided, wants, group)
  local limits = limits_of(seen, decided)
  return limits[''] and is_within(seen, limits[''], wants[1])
    or group ~= '' and limits[group] and is_within(seen, limits[group], wants[2])
end

-- Returns how the entry of a job compares with others that give their slots, or nil if it gives its slot to nobody in
-- this turn. A batch job gives its slot to every other job, before all others do, and takes no slot from any other job.
local function order_of(seen, entry, tenant, sides, is_batch, starts_first)
  if is_paused(entry) or is_batch and entry.job.priority >= 0 then
    return nil
  elseif entry.job.priority < 0 and not is_batch then
    return has_run(seen, entry.in_slot_ms) and { -1, 0, 0, 0, 0, entry.in_slot_ms, entry.job.id } or nil
  end
  local has, wants = opponents(entry.job, entry.sides, tenant, sides)
  if has and gives_slot(seen, has, wants, entry, starts_first) then
    -- Jobs of the same group as the tenant are compared with those of others by their group.
    local owner, within = unpack(entry.sides)
    return { entry.rank, -owner.slots / owner.weight, -owner.service, within and -within.slots / within.weight or 0,
      entry.in_slot_ms < seen.quantum_ms and 1 or 0, entry.in_slot_ms, entry.job.id }
  end
end

-- Whether any job of the worker has had its slot for long enough to give it to another one.
local function has_victims(report, seen)
  return has_run(seen, report.longest_ms)
end

-- Returns the entry of the job that gives its slot to a tenant in its turn in a group ('' for none), or nil. `is_batch`
-- is true if the tenant wants the slot for a batch job.
local function find_victim(report, seen, decided, tenant, group, is_batch)
  local sides = contenders(seen, decided, tenant, group)
  if not (report.has_batch and not is_batch) and not may_get_slot(seen, decided, sides, group) then
    return nil
  end
  local victim, best
  local starts_first = slots_in_use.rows_of(seen.slug, 'p', tenant) == 0
  for i = 1, #decided.computing do
    local entry = decided.computing[i]
    local order = order_of(seen, entry, tenant, sides, is_batch, starts_first)
    if order and (not victim or is_before(order, best)) then
      victim, best = entry, order
    end
  end
  return victim
end

-- Whether a tenant that wants slots is not the one of a job, which has its turns in a group ('' for none). All tenants
-- that want slots for other jobs are rivals of a batch job.
local function has_rivals(slug, tenant, group, is_batch)
  local set = priority.set_key(slug, '', is_batch)
  return is_batch and redis.call('EXISTS', k_active .. slug) == 1
    or redis.call('ZCARD', set) > (redis.call('ZSCORE', set, owner_of(tenant, group)) and 1 or 0)
    or group ~= '' and redis.call('ZCARD', set .. group) > (redis.call('ZSCORE', set .. group, tenant) and 1 or 0)
end

-- Returns in how many ms another call may pause a job: when the next job has had its slot for long enough, but not
-- sooner than after a quarter of a quantum, and after a quantum at the latest. A job that has had its slot for a
-- quantum gives it to an owner without a slot as soon as its own leads, which may be at any time. -1 if nobody else
-- wants the slots. The jobs that have just got slots count too: their rivals' jobs may be queued already, so that no
-- doorbell will ring.
local function next_contest_ms(seen, decided)
  local soonest_ms, is_known, is_wanted = seen.quantum_ms, {}, false
  local least_served = redis.call('ZRANGE', k_active .. seen.slug, 0, 0)[1]
  local lacks_slot = least_served and slots_in_use.rows_of(seen.slug, 'c', least_served) == 0
  for i = 1, #decided.computing do
    local entry = decided.computing[i]
    if not is_paused(entry) then
      local job, is_batch = entry.job, entry.job.priority < 0
      local kind = job.tenant .. ' ' .. math.min(0, job.priority)
      if not is_known[kind] then
        is_known[kind] = true
        is_wanted = is_wanted or has_rivals(seen.slug, job.tenant, job.group, is_batch)
      end
      for _, part in ipairs({ EARLY_PART, 1 }) do
        local rest_ms = part * seen.quantum_ms - entry.in_slot_ms
        soonest_ms = (rest_ms > 0 or lacks_slot and part == 1) and math.min(soonest_ms, rest_ms) or soonest_ms
      end
    end
  end
  return is_wanted and math.ceil(math.max(soonest_ms, EARLY_PART * seen.quantum_ms)) or -1
end
