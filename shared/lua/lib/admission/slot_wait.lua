-- slot_wait: predicts how long an offered job waits for a slot where running jobs are paused in favor of others.
-- KEYS tenant rows books
-- USES clock settings pool_record turns service priority slots_in_use pausing turnover lengths preempt
-- docs/fairness.md explains the formulas. A *holder* is a tenant or a group whose jobs have slots of the pool. The
-- slots of batch jobs do not count, because they are given to every other job.

-- With more entries than this in a pool's hash of rows, its owners are not looked at one by one.
local MAX_ROWS_READ = 64

-- Whether the request's job can get a slot that another job has: preemption is on, a live worker of the pool can pause
-- its jobs, and slots do not become free so often that nobody's job is paused. A batch job gets slots that nobody else
-- wants.
local function is_contested(asked)
  return not asked.is_batch and pausing.pool_may_pause(asked.slug) and not turnover.was_often(asked.slug)
end

-- Returns the holders but the request's tenant and its group. If the pool has too many, returns none, and their number.
local function read_holders(asked, seen)
  local key, rows, holders = k_rows .. asked.slug, {}, {}
  local entries = redis.call('HLEN', key)
  if entries > MAX_ROWS_READ then
    return holders, math.min(entries, seen.slots)
  end
  local stored = redis.call('HGETALL', key)
  for i = 1, #stored, 2 do
    local kind, owner = string.match(stored[i], '^(cb?)|(.+)$')
    if kind then
      rows[owner] = (rows[owner] or 0) + (kind == 'c' and 1 or -1) * number(stored[i + 1], 0, 0)
    end
  end
  for owner, slots in pairs(rows) do
    if slots > 0 and owner ~= seen.unit and owner ~= asked.tenant then
      local own = read_fields(k_tenant .. owner, { 'policy_weight_milli', 's|' .. asked.slug, 'g|' .. asked.slug })
      holders[#holders + 1] = { name = owner, rows = slots,
        weight_milli = pool_record.weight_in(own.policy_weight_milli), service = number(own['s|' .. asked.slug], 0,
        service.MIN_SERVICE_MWT), group = service.set_of(owner, own['g|' .. asked.slug]) }
    end
  end
  return holders, 0
end

-- Returns the owners that share a set's slots: the owner, with its weight and its service; the others that want slots,
-- whose weights are in `total_milli` together with the owner's; and the `idlers`, which have slots but want no more.
-- `lead` is how far the owner's service is above that of every other holder. Of `unseen` holders, only the number is
-- known: each counts with the weight 1.
local function open_level(asked, owner, group, weight_milli, total_milli, holders, unseen)
  local slug, set = asked.slug, priority.set_key(asked.slug, group, false)
  local score, is_member = turns.score_of(asked, owner, group)
  local level = { weight_milli = weight_milli, sum_milli = total_milli, idlers = {}, lead = 0,
    owners = redis.call('ZCARD', set) + (is_member and 0 or 1),
    ahead = redis.call('ZCOUNT', set, '-inf', '(' .. digits(score)) }
  -- An exchange raises the virtual time to the least service in the set, the owner's included, before it chooses jobs.
  local least = number(redis.call('ZRANGE', set, 0, 0, 'WITHSCORES')[2], score, service.MIN_SERVICE_MWT)
  local virtual_time, most = math.max(service.virtual_time_of(slug, group), math.min(least, score)), nil
  for i = 1, #holders do
    local holder = holders[i]
    if holder.group == group then
      local service = number(redis.call('ZSCORE', set, holder.name), nil, service.MIN_SERVICE_MWT)
      if not service then
        table.insert(level.idlers, holder)
        level.owners, level.sum_milli = level.owners + 1, level.sum_milli + holder.weight_milli
        service = math.max(virtual_time, holder.service)
      end
      most = math.max(most or service, service)
    end
  end
  local more = math.max(0, unseen - level.owners)
  level.owners, level.sum_milli = level.owners + more, level.sum_milli + 1000 * more
  level.lead = most and math.max(0, score - most) or 0
  return level
end

-- Returns how many of `slots` slots the owner of a level gets by the max-min rule: each idler keeps its slots if they
-- are no more than its share, and the rest is shared by weight.
local function share_of(level, slots)
  local left, sum_milli, kept, changed = slots, level.sum_milli, {}, true
  while changed do
    changed = false
    for i, idler in ipairs(level.idlers) do
      if not kept[i] and idler.rows * sum_milli <= left * idler.weight_milli then
        kept[i], changed = true, true
        left, sum_milli = left - idler.rows, sum_milli - idler.weight_milli
      end
    end
  end
  return left * level.weight_milli / sum_milli
end

-- Returns how many slots an owner with this share gets whenever it wants them: at least one while slots last.
local function whole_slots(share, owners, slots)
  return math.max(math.floor(share), owners <= slots and 1 or 0)
end

-- Returns the ms until the others of a level, which compute in `slots` of the pool's slots, have caught up with its
-- owner: an owner that leads by more than a part of a quantum gets no slot of theirs.
local function lead_ms_of(seen, level, slots, quantum_ms)
  local unit_mwt = seen.counts_turns and seen.mean_mwt / 1000 or 1
  local pool_slots = math.max(1, seen.slots)
  local lead_mwt = seen.counts_turns and 1000
    or preempt.lead_part_of(pool_slots, false) * quantum_ms * seen.mu / pool_slots
  local excess = math.max(0, level.lead - lead_mwt * 1000 / level.weight_milli)
  return excess * (level.sum_milli - level.weight_milli) / 1000 * unit_mwt * pool_slots
    / (seen.mu * math.max(1, math.min(slots, pool_slots)))
end

-- Returns the cost of a mean job of the tenant, by the lengths of its answers. Its running jobs may be longer than the
-- request allows.
local function usual_cost_mwt(asked, seen)
  return 1000 * asked.prompt_tokens
    + seen.generated_weight_milli * lengths.usual_length(asked.tenant, asked.slug, MAX_NUMBER)
end

-- Adds `slot_view` to the request: the slots of the pool, as they matter for its tenant.
local function look_at_slots(asked, seen, verdict)
  local own, slots, holders, unseen = seen.member or seen, seen.slots, read_holders(asked, seen)
  local quantum_ms = settings.read_setting('quantum_ms')
  local pool = open_level(asked, seen.unit, '', seen.weight_milli, seen.total_weight_milli, holders,
    unseen)
  local share = share_of(pool, slots)
  local first, lead_ms = whole_slots(share, pool.owners, slots), lead_ms_of(seen, pool, slots, quantum_ms)
  local ahead = pool.ahead
  if seen.member then
    local set = priority.set_key(asked.slug, seen.unit, false)
    local members = redis.call('ZCARD', set) + (redis.call('ZSCORE', set, asked.tenant) and 0 or 1)
    local group_slots = math.max(1, first)
    local level = open_level(asked, asked.tenant, seen.unit, own.weight_milli, own.weight_milli * members,
      holders, 0)
    local part = share_of(level, group_slots)
    first = first > 0 and whole_slots(part, level.owners, group_slots) or 0
    share, ahead = math.min(1, share) * part, ahead + level.ahead
    lead_ms = lead_ms + lead_ms_of(seen, level, group_slots, quantum_ms)
  end
  local slug, tenant = asked.slug, asked.tenant
  local paused = slots_in_use.main_rows_of(slug, 'p', tenant)
  local jobs = slots_in_use.main_rows_of(slug, 'c', tenant) + paused
  local all_paused = number(redis.call('HGET', k_books .. slug, 'paused'), 0, 0)
  local others_mwt = math.max(0, seen.pool_mwt - own.tenant_mwt)
    + math.max(0, seen.running - jobs) * seen.mean_mwt
  verdict.slot_view = { slots = slots, share = share, first = first, ahead = ahead, owners = pool.owners, jobs = jobs,
    mu = seen.mu, quantum_ms = quantum_ms, lead_ms = math.min(lead_ms, others_mwt / seen.mu),
    mean_mwt = seen.mean_mwt, others_mwt = others_mwt, running_mwt = jobs * usual_cost_mwt(asked, seen),
    queued_mwt = own.tenant_mwt / math.max(1, own.waiting_here),
    is_crowded = all_paused >= preempt.most_paused(slug, slots, slots) and paused == 0 }
end

-- Returns the ms until a job gets a slot after `rank` queued jobs of its tenant, and whether it gets one at once of
-- those that are its tenant's share.
local function slot_wait_ms(view, rank)
  local before = view.jobs + rank
  if view.is_crowded then
    -- While the workers may pause no further jobs, a job of a tenant without a paused one starts only when another
    -- ends. If nothing of the tenant runs, it also starts when a paused job makes room: when its tenant leads by far.
    local end_ms = (1 + view.ahead + before) * view.mean_mwt / view.mu
    local room_ms = before > 0 and math.huge
      or view.quantum_ms * (1 + preempt.RISK_FACTOR * preempt.lead_part_of(view.slots, false)
      * view.owners / math.max(1, view.slots))
    return math.max(view.lead_ms, math.min(end_ms, room_ms)), false
  elseif before < view.first then
    return preempt.EARLY_PART * view.quantum_ms + view.lead_ms, view.lead_ms == 0
  elseif before == 0 then
    return view.quantum_ms * (1 + view.ahead / math.max(1, view.slots)) + view.lead_ms, false
  end
  local ends = before - math.max(1, view.first) + 1
  local own_mwt = (view.running_mwt + rank * view.queued_mwt) * ends / before
  return math.max(view.lead_ms,
    math.min(own_mwt * math.max(1, view.slots) / view.share, own_mwt + view.others_mwt) / view.mu), false
end

-- Returns for how long a job that computes for `compute_ms` is paused. One of a tenant whose share is less than a slot
-- takes turns after its first quantum, until the work of the others is done.
local function paused_ms_of(view, compute_ms)
  if view.share >= 1 or compute_ms <= view.quantum_ms then
    return 0
  end
  return math.min((compute_ms - view.quantum_ms) * (1 / view.share - 1), view.others_mwt / view.mu)
end
