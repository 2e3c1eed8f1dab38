-- hint: computes how long the client of a refused request should wait before it sends the request again.
-- KEYS appointments asked
-- USES clock work_time return_room

local HINT_MIN_MS, HINT_MAX_MS = 50, 60000
-- A wait longer than HINT_MAX_MS is told as a hint between this and HINT_MAX_MS.
local CAPPED_MIN_MS = 50000
-- A hint is longer than the wait by up to this part of it.
local SPREAD_PART = 0.2
-- The number of ids of refused requests that are stored. When a proxy retries a request, the retry has the same id as
-- the request. The stored id prevents the retry from postponing the appointment again.
local MAX_ASKED = 1024
-- One call in 16 removes old entries from the sorted sets, so that the sets stay bounded and most calls stay cheap.
local TRIM_ONE_IN = 16

-- Returns the name of the request's appointment. That of a tenant's batch jobs is apart from that of its other jobs.
local function appointment_of(asked, seen)
  return asked.is_batch and seen.unit .. '|batch' or seen.unit
end

-- Postpones the tenant's appointment by the time that the tenant's share of the pool needs for one job, and returns the
-- new appointment. The appointment is the predicted time at which the share has done all the work that the tenant has
-- offered, both admitted and refused. It is at most HINT_MAX_MS later than the predicted time at which the share has
-- done the tenant's queued work.
local function advance_appointment(asked, seen, verdict, key, appointment_ms)
  local latest_ms = now_ms + work_time.share_ms(seen, seen.tenant_mwt) + HINT_MAX_MS
  -- A job that supersedes an older job adds only the difference between their costs.
  local added_mwt = seen.cost_mwt - (seen.replaced_mwt or 0)
  local next_ms = math.min(latest_ms, math.max(appointment_ms, now_ms) + work_time.share_ms(seen, added_mwt))
  redis.call('ZADD', key, string.format('%.0f', next_ms), appointment_of(asked, seen))
  verdict.booked_ms = math.max(0, next_ms - math.max(appointment_ms, now_ms))
  return next_ms
end

-- A client that is told not to come back is not expected. But it, or the client of the next such request, will send
-- another one. Its request therefore postpones the appointment by this part only. With 1, hardly any client is told to
-- come back after a burst; with 0, many are told so under a lasting overload, where each return takes the place of a
-- new request.
local NOT_EXPECTED_PART = 0.75

-- Lets a refused request postpone the appointment by less, because its client is not expected.
local function book_less(asked, seen, verdict)
  if verdict.booked_ms then
    local by_ms = (1 - NOT_EXPECTED_PART) * verdict.booked_ms
    redis.call('ZINCRBY', k_appointments .. asked.slug, string.format('%.0f', -by_ms), appointment_of(asked, seen))
  end
end

-- Returns the ms until the tenant's appointment, minus the time that the tenant's share needs for its queued work. Each
-- new job that is refused postpones the appointment, so a tenant that keeps offering more than its share gets longer
-- and longer hints. The appointment is not before there is room for another job. A retry postpones the appointment only
-- if the appointment has passed.
local function ms_to_appointment(asked, seen, verdict, attempt, request_id)
  local key = k_appointments .. asked.slug
  local appointment_ms = number(redis.call('ZSCORE', key, appointment_of(asked, seen)), 0)
  local is_repeat = redis.call('ZADD', k_asked, now_ms, request_id) == 0
  seen.is_proxys_repeat = is_repeat and attempt == 0
  if not seen.has_rates then
    return math.max(0, appointment_ms - now_ms)
  end
  local drained_ms = now_ms + work_time.share_ms(seen, seen.tenant_mwt)
  if not is_repeat and not (attempt > 0 and appointment_ms > now_ms) then
    appointment_ms = advance_appointment(asked, seen, verdict, key, math.max(appointment_ms, drained_ms
      + return_room.ms_to_room(asked, seen, verdict)))
  end
  return math.max(0, appointment_ms - drained_ms)
end

-- Postpones the appointment for an admitted job, unless the request is a retry: the appointment was already postponed
-- when the request was refused.
local function book_taken(asked, seen, verdict, attempt)
  if attempt == 0 and seen.has_rates then
    local key = k_appointments .. asked.slug
    advance_appointment(asked, seen, verdict, key, number(redis.call('ZSCORE', key, appointment_of(asked, seen)), 0))
    if now_us % TRIM_ONE_IN == 0 then
      redis.call('ZREMRANGEBYSCORE', key, '-inf', now_ms)
    end
  end
end

-- The refusal reasons that do not depend on the pool's load. Hints for these refusals ignore the appointment.
local WITHOUT_APPOINTMENT = { no_worker = true, draining = true, load_failed = true, rate_limited = true,
  tenant_bytes_full = true, budget_exhausted = true, no_suitable_pool = true }

local function depends_on_load(refusal)
  return not WITHOUT_APPOINTMENT[refusal.reason] and not refusal.is_hopeless
end

-- Whether a client that comes back after `hint_ms` can have its answer by the times that it named. The door asks
-- clients not to retry by the same rule (web/api/deadline.py).
local function is_in_time(asked, verdict, hint_ms)
  return not (asked.deadline_named and hint_ms + math.max(0, math.floor(verdict.compute_ms)) > verdict.deadline_in_ms)
    and not (asked.start_named and hint_ms > verdict.start_within_ms)
end

-- Returns the hint for a wait, in ms, and whether the wait is as long as the longest hint or longer: appointments are
-- not later than that, so nobody knows by how much. Clients sleep for exactly
-- the hint, so without `spread` (from 0 to 1) all clients with the same wait would come back at the same time. A hint
-- is never shorter than the wait, unless the wait is longer than the longest hint.
local function spread_hint(wait_ms, base_ms, spread)
  if math.ceil(wait_ms) >= HINT_MAX_MS then
    local shortest_ms = base_ms < HINT_MAX_MS and math.max(CAPPED_MIN_MS, base_ms) or CAPPED_MIN_MS
    return math.floor(shortest_ms + spread * (HINT_MAX_MS - shortest_ms)), true
  end
  local longer_ms = math.min(SPREAD_PART * wait_ms, HINT_MAX_MS - wait_ms)
  return math.max(HINT_MIN_MS, math.min(HINT_MAX_MS, math.ceil(wait_ms + spread * longer_ms))), false
end

-- Returns how long the client of a refused request has to wait, in ms. It doubles with each attempt, at most three
-- times. A client that came back when it was expected goes before those that are expected later, so it does not wait
-- for the appointment. One that came back too early keeps its place.
local function wait_for(asked, seen, verdict, refusal, attempt, request_id)
  if seen.is_early and depends_on_load(refusal) then
    return math.max(refusal.base_ms, seen.reservation.retry_ms - now_ms)
  end
  local has_appointment = depends_on_load(refusal) and not seen.is_due
  local wait_ms = has_appointment and ms_to_appointment(asked, seen, verdict, attempt, request_id) or 0
  return math.max(refusal.base_ms, wait_ms) * 2 ^ math.max(0, math.min(attempt, 3))
end

-- Returns the shortest and the longest hint in ms that any request of the tenant to this pool would get now, or 0 and 0
-- if they depend on the request. They do not if the bound on inflight jobs is hit for all: no size is too large for a
-- rate or a budget, no client is expected at a time of its own, and the appointment is unknown or as late as can be.
local function shared_hints(seen, verdict, refusal, is_capped)
  if not refusal.is_for_all or seen.rpm or seen.tpm or seen.key or seen.day_cap
    or seen.has_rates and not is_capped then
    return 0, 0
  end
  for _, budget in ipairs(seen.budgets) do
    if next(budget.most) then
      return 0, 0
    end
  end
  local shortest_ms = spread_hint(verdict.wait_ms, refusal.base_ms, 0)
  local longest_ms = spread_hint(verdict.wait_ms, refusal.base_ms, 1)
  return shortest_ms, longest_ms
end

-- Returns the retry hint in ms, and whether the wait is longer than the longest hint. The hint is at least base_ms,
-- unless that is more than HINT_MAX_MS. Some checks set it.
local function hint_for(asked, seen, verdict, refusal, attempt, request_id)
  if verdict.hint_ms then
    return verdict.hint_ms, true
  end
  local digest = tonumber(string.sub(redis.sha1hex(request_id), 1, 4), 16)
  local wait_ms = wait_for(asked, seen, verdict, refusal, attempt, request_id)
  verdict.wait_ms = wait_ms
  if digest % TRIM_ONE_IN == 0 then
    redis.call('ZREMRANGEBYRANK', k_asked, 0, -MAX_ASKED - 1)
    redis.call('ZREMRANGEBYSCORE', k_appointments .. asked.slug, '-inf', now_ms)
  end
  -- The hint of a client that came back too early was spread before.
  return spread_hint(wait_ms, refusal.base_ms, seen.is_early and 0 or digest / 65536)
end
