-- return_room: makes new requests of a tenant leave room for its clients that were told to come back and are due.
-- KEYS room
-- USES clock work_time reservation
-- A tenant's threshold falls when other tenants queue work, faster than the tenant's own queue drains. So both a hint
-- and the room that is left rest on the smallest threshold of the recent past. docs/adr/0039-reservations.md explains
-- the figures.

-- The second value applies at tiers 1 and 2.
local ALPHA, ALPHA_UNDER_PRESSURE = 1, 0.5
-- While clients are due, new requests may use this part of the threshold, and hints aim at this part of it.
local NEWCOMERS_PART = 0.8
local AIM_PART = 0.35
-- At most this part of the work that a tenant may have queued is kept for clients that are due: a client that reserves
-- much and does not come back must not keep out the others of its tenant.
local DUE_PART = 0.5
-- The smallest threshold is forgotten with this time constant.
local FORGET_MS = 20000
-- It is stored this often, and when it has fallen below this part of the stored value.
local NOTE_EVERY_MS, NOTE_PART = 250, 0.98

-- Returns the factor alpha of Choudhury and Hahne's dynamic threshold: the work that a tenant may have queued, as a
-- multiple of its share of the free backlog.
local function alpha_of(verdict)
  return verdict.tier > 0 and ALPHA_UNDER_PRESSURE or ALPHA
end

-- Adds to `seen` the smallest threshold of the recent past: the free backlog of the pool for each thousandth of a
-- weight, in mwt, and the tenant's part of it.
local function look_at_room(asked, seen)
  if seen.has_rates then
    local stored = read_fields(k_room .. asked.slug, { 'room_mwt', 'room_ms' })
    local room = math.max(0, seen.max_backlog_mwt - seen.pool_mwt) / seen.total_weight_milli
    local stored_room, stored_ms = number(stored.room_mwt, room, 0), number(stored.room_ms, 0, 0, now_ms)
    seen.room = room - math.max(0, room - stored_room) * math.exp((stored_ms - now_ms) / FORGET_MS)
    seen.room_changed = seen.room < NOTE_PART * stored_room or now_ms - stored_ms > NOTE_EVERY_MS
    seen.room_mwt = seen.room * seen.weight_milli
  end
end

local function note_room(asked, seen)
  if seen.room_changed and not asked.is_batch then
    redis.call('HSET', k_room .. asked.slug, 'room_mwt', string.format('%.3f', seen.room), 'room_ms', now_ms)
  end
end

-- Whether a new request may be admitted although clients are due: if a slot may be free, or the tenant has nothing
-- queued in the pool, because these are never kept empty; or if the request replaces a job that takes as much.
local function needs_no_room(seen, verdict)
  return verdict.idle or seen.pool_inflight < seen.slots or seen.waiting_here == 0
    or seen.replaced_mwt and seen.cost_mwt <= seen.replaced_mwt
end

-- Checks that the job of a new request leaves room for the tenant's clients that are due: in its list, in its tokens
-- and in its share. Of each, at most a part is kept for them. Nothing is kept from other tenants, and no place of the
-- bound on inflight jobs is kept.
local function check_room(asked, seen, verdict)
  local due = not needs_no_room(seen, verdict) and reservation.sum_due(asked, seen)
  if not due or due.jobs == 0 then
    return nil
  end
  local jobs = seen.waiting + math.min(due.jobs, math.floor(DUE_PART * seen.max_waiting))
  if jobs >= seen.max_waiting then
    return { reason = 'tenant_queue_full', limit = 'tenant_waiting_and_due_jobs', value = jobs, max = seen.max_waiting,
      base_ms = work_time.drain_ms(seen, seen.mean_mwt, true) }
  end
  local most_tokens = seen.max_waiting_tokens
  local tokens = most_tokens and seen.waiting_tokens + math.min(due.tokens, DUE_PART * most_tokens)
  if most_tokens and tokens + asked.prompt_tokens + asked.max_tokens > most_tokens then
    return { reason = 'tenant_tokens_full', limit = 'tenant_waiting_and_due_tokens', value = math.floor(tokens),
      max = most_tokens, base_ms = work_time.drain_ms(seen, seen.cost_mwt, true) }
  end
  local reason, whole_mwt, part = 'tenant_tokens_full', seen.max_work_mwt, 1
  if seen.has_rates and seen.full_admission then
    reason, whole_mwt, part = 'tenant_share_full', alpha_of(verdict) * seen.room_mwt, NEWCOMERS_PART
  end
  local work_mwt = whole_mwt and seen.tenant_mwt + math.min(due.cost_mwt, DUE_PART * whole_mwt)
  if whole_mwt and work_mwt + seen.cost_mwt > part * whole_mwt then
    local excess_mwt = seen.tenant_mwt + due.cost_mwt + seen.cost_mwt - part * whole_mwt
    return { reason = reason, limit = 'tenant_waiting_work', value = math.floor(work_mwt / 1000),
      max = math.floor(part * whole_mwt / 1000), base_ms = work_time.drain_ms(seen, excess_mwt, true) }
  end
end

-- Returns the ms until the tenant's share has done so much that another job fits into the part of the threshold at
-- which hints aim, also beside the jobs of clients that are due. Without full admission there is no threshold.
local function ms_to_room(asked, seen, verdict)
  if not seen.full_admission then
    return 0
  end
  local queued_mwt = seen.tenant_mwt + reservation.sum_due(asked, seen).cost_mwt
  return work_time.share_ms(seen, math.max(0, queued_mwt - AIM_PART * alpha_of(verdict) * seen.room_mwt))
end
