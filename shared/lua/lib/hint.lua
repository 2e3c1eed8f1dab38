-- hint: computes retry hints for refused clients, and measures how accurate earlier hints were.
-- KEYS appointments promises asked
-- USES clock stats

local HINT_MIN_MS, HINT_MAX_MS = 50, 60000
-- The number of ids of refused requests that are stored. When a proxy retries a request, the retry has the same id as
-- the request. The stored id prevents the retry from postponing the appointment again.
local MAX_ASKED = 1024
-- One call in 16 removes old entries from the sorted sets, so that the sets stay bounded and most calls stay cheap.
local TRIM_ONE_IN = 16

-- Returns how long the tenant's share of the pool takes to do `mwt` of work, in ms.
local function share_ms(request, mwt)
  return mwt * request.total_weight_milli / (request.weight_milli * request.mu)
end

-- Postpones the tenant's appointment by the time that the tenant's share of the pool needs for one job, and returns the
-- new appointment. The appointment is the predicted time at which the share has done all the work that the tenant has
-- offered, both admitted and refused. It is at most HINT_MAX_MS later than the predicted time at which the share has
-- done the tenant's queued work.
local function advance_appointment(request, key, appointment_ms)
  local latest_ms = now_ms + share_ms(request, request.tenant_mwt) + HINT_MAX_MS
  -- A job that supersedes an older job adds only the difference between their costs.
  local added_mwt = request.cost_mwt - (request.replaced_mwt or 0)
  local next_ms = math.min(latest_ms, math.max(appointment_ms, now_ms) + share_ms(request, added_mwt))
  redis.call('ZADD', key, string.format('%.0f', next_ms), request.tenant)
  return next_ms
end

-- Returns the ms until the tenant's appointment, minus the time that the tenant's share needs for its queued work. Each
-- new job that is refused postpones the appointment, so a tenant that keeps offering more than its share gets longer
-- and longer hints. A retry postpones the appointment only if the appointment has passed.
local function ms_to_appointment(request, attempt, request_id)
  local key = k_appointments .. request.slug
  local appointment_ms = number(redis.call('ZSCORE', key, request.tenant), 0)
  local is_repeat = redis.call('ZADD', k_asked, now_ms, request_id) == 0
  if not request.has_rates then
    return math.max(0, appointment_ms - now_ms)
  end
  if not is_repeat and not (attempt > 0 and appointment_ms > now_ms) then
    appointment_ms = advance_appointment(request, key, appointment_ms)
  end
  return math.max(0, appointment_ms - now_ms - share_ms(request, request.tenant_mwt))
end

-- Postpones the appointment for an admitted job, unless the request is a retry: the appointment was already postponed
-- when the request was refused.
local function book_taken(request, attempt)
  if attempt == 0 and request.has_rates then
    local key = k_appointments .. request.slug
    advance_appointment(request, key, number(redis.call('ZSCORE', key, request.tenant), 0))
    if now_us % TRIM_ONE_IN == 0 then
      redis.call('ZREMRANGEBYSCORE', key, '-inf', now_ms)
    end
  end
end

-- The refusal reasons that do not depend on the pool's load. Hints for these refusals ignore the appointment.
local WITHOUT_APPOINTMENT = { no_worker = true, draining = true, rate_limited = true,
  tenant_bytes_full = true }

-- Returns the retry hint in ms. It is at least base_ms, unless that is more than HINT_MAX_MS. It doubles with each
-- attempt, at most three times, and is lengthened by up to a fifth, depending on the request's id: clients sleep for
-- exactly the hint, so without this spread they would all retry at the same time.
local function hint_for(request, reason, base_ms, infeasible, attempt, request_id)
  local digest = tonumber(string.sub(redis.sha1hex(request_id), 1, 4), 16)
  local spread = digest / 65536 * 0.2
  local attempt_factor = 2 ^ math.max(0, math.min(attempt, 3))
  local by_appointment = not WITHOUT_APPOINTMENT[reason] and infeasible ~= 1
  local wait_ms = by_appointment and ms_to_appointment(request, attempt, request_id) or 0
  local unbounded_ms = math.max(base_ms, wait_ms) * attempt_factor * (1 + spread)
  local hint_ms = math.floor(math.max(HINT_MIN_MS, math.min(HINT_MAX_MS, unbounded_ms)))
  local key = k_promises .. request.slug
  redis.call('ZADD', key, now_ms + hint_ms, request.tenant)
  if digest % TRIM_ONE_IN == 0 then
    redis.call('ZREMRANGEBYRANK', k_asked, 0, -MAX_ASKED - 1)
    redis.call('ZREMRANGEBYSCORE', k_appointments .. request.slug, '-inf', now_ms)
    redis.call('ZREMRANGEBYSCORE', key, '-inf', now_ms - HINT_MAX_MS)
  end
  return hint_ms
end

-- If the admitted request is a retry, records by how many ms it came earlier or later than the tenant's last hint said.
local function judge_hint(request, attempt)
  if attempt > 0 then
    local promised_ms = number(redis.call('ZSCORE', k_promises .. request.slug, request.tenant))
    if promised_ms then
      observe('retry_hint_error', math.abs(now_ms - promised_ms))
    end
  end
end
