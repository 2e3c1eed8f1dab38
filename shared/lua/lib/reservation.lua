-- reservation: keeps when refused clients were told to come back, and recognises them when they do.
-- KEYS reservations
-- USES clock stats
-- A pool's sorted set has one member for each such client: `<tenant>|<hint's end>|<id>|<window's end>|<cost>|<prompt>|
-- <max_tokens>`, with times in ms, the cost in thousandths of a weighted token, and the rest in tokens. The id is the
-- beginning of the digest of the request's body. All scores are 0, so that the set is ordered by tenant and then by
-- time. A name of a tenant contains no character from `|` on.

-- The most reservations of one tenant in one pool, and of all tenants in one pool.
local MAX_RESERVED, MAX_IN_POOL = 64, 65536
-- The window in which a client is expected begins when its hint ends. It is this part of the hint, but at least
-- WINDOW_MIN_MS. The reservation is kept for LATE_MS more, so that a late return can be told from a new request.
local WINDOW_PART, WINDOW_MIN_MS, LATE_MS = 0.2, 2000, 60000
-- A hint is at most a minute, so a reservation whose window ends later than this was not written by a script.
local LATEST_END_MS = 75000
-- One refusal in 16 examines a few members that were chosen at random, and removes those that are no longer needed:
-- their tenants may never send another request.
local LOOK_ONE_IN, LOOKED_AT = 16, 64

-- Returns the parts of a member, or nil if its reservation is over or it was not written by a script.
local function read_reservation(member)
  local name, retry_ms, id, end_ms, cost_mwt, prompt, max =
    string.match(member, '^([^|]+)|(%d+)|(%x+)|(%d+)|(%d+)|(%d+)|(%d+)$')
  local ends = number(end_ms, nil, now_ms - LATE_MS, now_ms + LATEST_END_MS)
  if ends then
    return { member = member, tenant = name, retry_ms = tonumber(retry_ms), id = id, end_ms = ends,
      cost_mwt = number(cost_mwt, 0), prompt_tokens = number(prompt, 0), max_tokens = number(max, 0) }
  end
end

-- Returns the first reservations of the request's tenant, in the order of their times.
local function reservations_of(request)
  return redis.call('ZRANGEBYLEX', k_reservations .. request.slug, '[' .. request.tenant .. '|',
    '(' .. request.tenant .. '}', 'LIMIT', 0, MAX_RESERVED)
end

-- Finds the reservation of a request that its client sends again. Of several requests with the same body, the one that
-- was expected first is taken to be the one that returns.
local function find_reservation(request, id)
  local best
  for _, member in ipairs(reservations_of(request)) do
    local found = read_reservation(member)
    if found and found.id == id and (not best or best.end_ms < now_ms) then
      best = found
    end
  end
  request.reservation = best
end

-- Ends the reservation of a request that came back, and counts how accurate its hint was: `early` and `late` for a
-- return outside the window, otherwise the verdict, `admitted` or `refused`.
local function judge_return(request, decision)
  local found = request.reservation
  local result = now_ms < found.retry_ms and 'early' or now_ms > found.end_ms and 'late' or decision
  redis.call('ZREM', k_reservations .. request.slug, found.member)
  count('hint_returns|' .. label_of(request.tenant) .. '|' .. result)
end

-- Removes some members that are over or were not written by a script.
local function forget_reservations(key)
  local seen = redis.call('ZRANDMEMBER', key, LOOKED_AT, 'WITHSCORES')
  for i = 1, #seen, 2 do
    if tonumber(seen[i + 1]) ~= 0 or not read_reservation(seen[i]) then
      redis.call('ZREM', key, seen[i])
    end
  end
end

-- Makes room for another reservation of the tenant: removes those that are over, or else the one that was expected
-- first if its window has passed. Returns false if all of them are still expected.
local function has_room_for_reservation(request, key)
  local most = math.min(MAX_RESERVED, request.max_waiting)
  if redis.call('ZLEXCOUNT', key, '[' .. request.tenant .. '|', '(' .. request.tenant .. '}') < most then
    return redis.call('ZCARD', key) < MAX_IN_POOL
  end
  local members = reservations_of(request)
  local left = #members
  for i = 1, #members do
    local found = read_reservation(members[i])
    if not found or left >= most and found.end_ms < now_ms then
      redis.call('ZREM', key, members[i])
      left = left - 1
    end
  end
  return left < most
end

-- Keeps that the client of a refused request was told to send it again after `hint_ms`.
local function reserve(request, id, hint_ms)
  local key = k_reservations .. request.slug
  if now_us % LOOK_ONE_IN == 0 then
    forget_reservations(key)
  end
  if has_room_for_reservation(request, key) then
    local window_ms = math.floor(math.max(WINDOW_MIN_MS, WINDOW_PART * hint_ms))
    redis.call('ZADD', key, 0, table.concat({ request.tenant, whole(now_ms + hint_ms), id,
      whole(now_ms + hint_ms + window_ms), whole(math.max(0, request.cost_mwt)), whole(request.prompt_tokens),
      whole(request.max_tokens) }, '|'))
  end
end
