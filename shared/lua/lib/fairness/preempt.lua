-- preempt: chooses the running job of a worker that gives its slot to another tenant.
-- KEYS active batch tenant books
-- USES clock pool_record service priority slots_in_use generated_weight
-- docs/fairness.md explains the rules. The functions share a table `contest`, which `open_contest` makes: the jobs of a
-- worker whose slots may change hands. Its constants are slug, quantum_ms, frees_slots, counts_turns, lead_mwt,
-- first_lead_mwt and young_mwt. These fields change when slots change hands, and only this file writes them:
--   entries: the jobs that compute. Those of the worker's report have job, row_ms (the time since the job got its
--     slot), left_ms (how long the rest of its answer is expected to take) and generated_tokens; added are rank, sides
--     (the contenders for which the job counts) and is_paused
--   owners: the contenders by name · limits: see limits_of · longest_ms, has_batch: of all entries

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

-- Returns the facts about an owner that a contest needs: the number of its slots in the pool, its weight, and its
-- service in thousandths of a weighted token divided by the weight. One that wants no slots has at least the service
-- with which it would enter its set. `young` is the work that its jobs which got their slots less than a quantum ago
-- may still receive in that time.
local function contender(contest, owner, group)
  local known = contest.owners[owner]
  if not known then
    local slug = contest.slug
    local service = number(redis.call('ZSCORE', k_active .. slug .. group, owner)
      or redis.call('ZSCORE', k_batch .. slug .. group, owner), nil, service.MIN_SERVICE_MWT)
      or math.max(service.virtual_time_of(slug, group),
        number(redis.call('HGET', k_tenant .. owner, 's|' .. slug), 0, service.MIN_SERVICE_MWT))
    known = { rows = slots_in_use.rows_of(slug, 'c', owner), service = service, young = 0,
      weight = pool_record.weight_in(redis.call('HGET', k_tenant .. owner, 'policy_weight_milli')) / 1000 }
    contest.owners[owner] = known
  end
  return known
end

local function owner_of(tenant, group)
  return group ~= '' and group or tenant
end

-- Returns the contenders for which a tenant's job counts: the group or the tenant in the pool's set, and the tenant in
-- the set of its group.
local function contenders(contest, tenant, group)
  if group == '' then
    return { contender(contest, tenant, '') }
  end
  return { contender(contest, group, ''), contender(contest, tenant, group) }
end

-- Notes that a job got its slot `row_ms` ago, or (`rows` is 1) now, or (-1) that it loses its slot.
local function note_slot(contest, tenant, group, rows, row_ms)
  contest.limits = nil
  local young_mwt = rows < 0 and 0 or contest.young_mwt * math.max(0, 1 - row_ms / contest.quantum_ms)
  for _, one in ipairs(contenders(contest, tenant, group)) do
    one.rows, one.young = one.rows + rows, one.young + young_mwt / one.weight
  end
end

-- Notes that the job of an entry loses its slot.
local function note_victim(contest, victim)
  note_slot(contest, victim.job.tenant, victim.job.group, -1, 0)
  victim.is_paused = true
end

-- Notes that a job gets a slot now.
local function note_new_row(contest, job, group)
  note_slot(contest, job.tenant, group, 1, 0)
  table.insert(contest.entries, { job = job, row_ms = 0, left_ms = 0, rank = 0 })
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

-- Returns a contest for the slots of the jobs `entries`, whose pool has `slots` slots. In turns mode a job is one unit
-- of service, whatever it takes. `frees_slots` is true if slots often become free without a pause.
local function open_contest(slug, quantum_ms, quantum_mwt, counts_turns, entries, slots, frees_slots)
  local contest = { slug = slug, quantum_ms = quantum_ms, entries = entries, owners = {}, longest_ms = 0,
    frees_slots = frees_slots, counts_turns = counts_turns,
    lead_mwt = counts_turns and 1000 or lead_part_of(slots, false) * quantum_mwt,
    first_lead_mwt = counts_turns and 0 or lead_part_of(slots, true) * quantum_mwt,
    young_mwt = counts_turns and 0 or quantum_mwt }
  for i = 1, #entries do
    local entry = entries[i]
    note_slot(contest, entry.job.tenant, entry.job.group, 0, entry.row_ms)
    contest.longest_ms = math.max(contest.longest_ms, entry.row_ms)
    contest.has_batch = contest.has_batch or entry.job.priority < 0
    -- The pause of a job that is nearly done gains little, and a job that cannot afford to wait is paused last.
    entry.rank = is_urgent(entry, quantum_ms) and 2 or entry.left_ms <= quantum_ms and 1 or 0
  end
  return contest
end

-- Returns the contenders for which the job of an entry counts.
local function sides_of(contest, entry)
  entry.sides = entry.sides or contenders(contest, entry.job.tenant, entry.job.group)
  return entry.sides
end

-- Returns two contenders, from the first set in which they differ: the one that would give its slot, and the one that
-- would get it. Returns nil if both jobs belong to the same tenant. `sides` are the contenders for which the tenant
-- counts that wants the slot.
local function opponents(contest, entry, tenant, sides)
  local has = sides_of(contest, entry)
  if entry.job.tenant == tenant then
    return nil
  elseif has[1] ~= sides[1] then
    return has[1], sides[1]
  end
  return has[2], sides[2]
end

-- Whether the job of an entry gives its slot. First rule: the other has fewer slots than its share and would not have
-- more than this one afterwards, and does not lead in service. This rule is left out where slots often become free.
-- Second rule: the job has had its slot for a quantum, and its owner leads in service. If the other has nothing that
-- runs (`starts_first`), a smaller lead is enough, on one slot any: a newcomer enters with the service of the others,
-- so it would otherwise wait until they have got that lead, again for each job that comes when its last one has ended.
-- A job that would miss its deadline gives its slot only by the second rule, and only to one that its owner leads by
-- far: the work on it would be lost.
local function gives_slot(contest, has, wants, entry, starts_first)
  local is_risky = entry.rank == 2
  if not contest.frees_slots and not is_risky and (has.rows - 1) * wants.weight > wants.rows * has.weight
    and entry.row_ms >= EARLY_PART * contest.quantum_ms
    and wants.service <= has.service + contest.lead_mwt / wants.weight then
    return true
  end
  local lead_mwt = is_risky and RISK_FACTOR * contest.lead_mwt
    or starts_first and wants.rows == 0 and contest.first_lead_mwt or contest.lead_mwt
  return entry.row_ms >= contest.quantum_ms and has.service > wants.service + wants.young + lead_mwt / has.weight
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
local function has_run(contest, row_ms)
  return row_ms >= EARLY_PART * contest.quantum_ms
end

-- Returns, by set, the highest values of all owners of jobs that may give their slots: `slots` (all but one, divided by
-- the weight), `service` and `weight`. So a tenant that can get no slot from them is not compared with each of their
-- jobs.
local function limits_of(contest)
  if not contest.limits then
    contest.limits = {}
    for i = 1, #contest.entries do
      local entry = contest.entries[i]
      local may_give = not entry.is_paused and has_run(contest, entry.row_ms)
      for level, has in ipairs(may_give and sides_of(contest, entry) or {}) do
        local set = level == 1 and '' or entry.job.group
        local limits = contest.limits[set] or { slots = 0, service = has.service, weight = 0 }
        limits.slots = math.max(limits.slots, (has.rows - 1) / has.weight)
        limits.service = math.max(limits.service, has.service)
        limits.weight = math.max(limits.weight, has.weight)
        contest.limits[set] = limits
      end
    end
  end
  return contest.limits
end

-- Whether `gives_slot` can be true for a job of an owner within the limits.
local function is_within(contest, limits, wants)
  local lead_mwt = wants.rows == 0 and contest.first_lead_mwt or contest.lead_mwt
  return not contest.frees_slots and limits.slots > wants.rows / wants.weight
      and wants.service <= limits.service + contest.lead_mwt / wants.weight
    or limits.service > wants.service + wants.young + lead_mwt / limits.weight
end

-- Whether any job may give its slot to a tenant in its turn in a group.
local function may_get_slot(contest, sides, group)
  local limits = limits_of(contest)
  return limits[''] and is_within(contest, limits[''], sides[1])
    or group ~= '' and limits[group] and is_within(contest, limits[group], sides[2])
end

-- Returns how the entry of a job compares with others that give their slots, or nil if it gives its slot to nobody in
-- this turn. A batch job gives its slot to every other job, before all others do, and takes no slot from any other job.
local function order_of(contest, entry, tenant, sides, is_batch, starts_first)
  if entry.is_paused or is_batch and entry.job.priority >= 0 then
    return nil
  elseif entry.job.priority < 0 and not is_batch then
    return has_run(contest, entry.row_ms) and { -1, 0, 0, 0, 0, entry.row_ms, entry.job.id } or nil
  end
  local has, wants = opponents(contest, entry, tenant, sides)
  if has and gives_slot(contest, has, wants, entry, starts_first) then
    -- Jobs of the same group as the tenant are compared with those of others by their group.
    local owner, within = unpack(sides_of(contest, entry))
    return { entry.rank, -owner.rows / owner.weight, -owner.service, within and -within.rows / within.weight or 0,
      entry.row_ms < contest.quantum_ms and 1 or 0, entry.row_ms, entry.job.id }
  end
end

-- Whether any job of the worker has had its slot for long enough to give it to another one.
local function has_victims(contest)
  return has_run(contest, contest.longest_ms)
end

-- Returns the entry of the job that gives its slot to a tenant in its turn in a group ('' for none), or nil. `is_batch`
-- is true if the tenant wants the slot for a batch job.
local function find_victim(contest, tenant, group, is_batch)
  local sides = contenders(contest, tenant, group)
  if not (contest.has_batch and not is_batch) and not may_get_slot(contest, sides, group) then
    return nil
  end
  local victim, best
  local starts_first = slots_in_use.rows_of(contest.slug, 'p', tenant) == 0
  for i = 1, #contest.entries do
    local entry = contest.entries[i]
    local order = order_of(contest, entry, tenant, sides, is_batch, starts_first)
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
local function next_contest_ms(contest)
  local soonest_ms, seen, is_wanted = contest.quantum_ms, {}, false
  local least_served = redis.call('ZRANGE', k_active .. contest.slug, 0, 0)[1]
  local lacks_slot = least_served and slots_in_use.rows_of(contest.slug, 'c', least_served) == 0
  for i = 1, #contest.entries do
    local job, row_ms = contest.entries[i].job, contest.entries[i].row_ms
    local kind, is_batch = job.tenant .. ' ' .. math.min(0, job.priority), job.priority < 0
    if not seen[kind] and not contest.entries[i].is_paused then
      seen[kind] = true
      is_wanted = is_wanted or has_rivals(contest.slug, job.tenant, job.group, is_batch)
    end
    for _, part in ipairs(contest.entries[i].is_paused and {} or { EARLY_PART, 1 }) do
      local rest_ms = part * contest.quantum_ms - row_ms
      soonest_ms = (rest_ms > 0 or lacks_slot and part == 1) and math.min(soonest_ms, rest_ms) or soonest_ms
    end
  end
  return is_wanted and math.ceil(math.max(soonest_ms, EARLY_PART * contest.quantum_ms)) or -1
end
