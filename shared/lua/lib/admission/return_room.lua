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
local function alpha_of(request)
  return request.tier > 0 and ALPHA_UNDER_PRESSURE or ALPHA
end

-- Adds to `request` the smallest threshold of the recent past: the free backlog of the pool for each thousandth of a
-- weight, in mwt, and the tenant's part of it.
local function look_at_room(request)
  if request.has_rates then
    local stored = read_fields(k_room .. request.slug, { 'room_mwt', 'room_ms' })
    local room = math.max(0, request.max_backlog_mwt - request.pool_mwt) / request.total_weight_milli
    local stored_room, stored_ms = number(stored.room_mwt, room, 0), number(stored.room_ms, 0, 0, now_ms)
    request.room = room - math.max(0, room - stored_room) * math.exp((stored_ms - now_ms) / FORGET_MS)
    request.room_changed = request.room < NOTE_PART * stored_room or now_ms - stored_ms > NOTE_EVERY_MS
    request.room_mwt = request.room * request.weight_milli
  end
end

local function note_room(request)
  if request.room_changed and not request.is_batch then
    redis.call('HSET', k_room .. request.slug, 'room_mwt', string.format('%.3f', request.room), 'room_ms', now_ms)
  end
end

-- Whether a new request may be admitted although clients are due: if a slot may be free, or the tenant has nothing
-- queued in the pool, because these are never kept empty; or if the request replaces a job that takes as much.
local function needs_no_room(request)
  return request.idle or request.pool_inflight < request.slots or request.waiting_here == 0
    or request.replaced_mwt and request.cost_mwt <= request.replaced_mwt
end

-- Checks that the job of a new request leaves room for the tenant's clients that are due: in its list, in its tokens
-- and in its share. Of each, at most a part is kept for them. Nothing is kept from other tenants, and no place of the
-- bound on inflight jobs is kept.
local function check_room(request)
  local due = not needs_no_room(request) and reservation.sum_due(request)
  if not due or due.jobs == 0 then
    return nil
  end
  local jobs = request.waiting + math.min(due.jobs, math.floor(DUE_PART * request.max_waiting))
  if jobs >= request.max_waiting then
    return { 'tenant_queue_full', 'tenant_waiting_and_due_jobs', jobs, request.max_waiting,
      work_time.drain_ms(request, request.mean_mwt, true) }
  end
  local most_tokens = request.max_waiting_tokens
  local tokens = most_tokens and request.waiting_tokens + math.min(due.tokens, DUE_PART * most_tokens)
  if most_tokens and tokens + request.prompt_tokens + request.max_tokens > most_tokens then
    return { 'tenant_tokens_full', 'tenant_waiting_and_due_tokens', math.floor(tokens), most_tokens,
      work_time.drain_ms(request, request.cost_mwt, true) }
  end
  local reason, whole_mwt, part = 'tenant_tokens_full', request.max_work_mwt, 1
  if request.has_rates and request.full_admission then
    reason, whole_mwt, part = 'tenant_share_full', alpha_of(request) * request.room_mwt, NEWCOMERS_PART
  end
  local work_mwt = whole_mwt and request.tenant_mwt + math.min(due.cost_mwt, DUE_PART * whole_mwt)
  if whole_mwt and work_mwt + request.cost_mwt > part * whole_mwt then
    return { reason, 'tenant_waiting_work', math.floor(work_mwt / 1000), math.floor(part * whole_mwt / 1000),
      work_time.drain_ms(request, request.tenant_mwt + due.cost_mwt + request.cost_mwt - part * whole_mwt, true) }
  end
end

-- Returns the ms until the tenant's share has done so much that another job fits into the part of the threshold at
-- which hints aim, also beside the jobs of clients that are due. Without full admission there is no threshold.
local function ms_to_room(request)
  if not request.full_admission then
    return 0
  end
  local queued_mwt = request.tenant_mwt + reservation.sum_due(request).cost_mwt
  return work_time.share_ms(request, math.max(0, queued_mwt - AIM_PART * alpha_of(request) * request.room_mwt))
end
