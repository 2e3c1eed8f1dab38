-- reservation: keeps when refused clients were told to come back, recognises them when they do, and counts who is due.
-- KEYS reservations
-- USES clock stats
-- A pool's sorted set has one member for each such client: `<tenant>|<hint's end>|<id>|<window's end>|<cost>|<prompt>|
-- <max_tokens>|<judged>`, with times in ms, the cost in thousandths of a weighted token, and 1 at the end if a return
-- of this client was already counted. The id is the beginning of the digest of the request's body. All scores are 0, so
-- that the set is ordered by tenant and then by time. A name of a tenant contains no character from `|` on.

-- The most reservations of one tenant in one pool, and of all tenants in one pool.
local MAX_RESERVED, MAX_IN_POOL = 64, 65536
-- The window in which a client is expected begins when its hint ends. It is this part of the hint, but at least
-- WINDOW_MIN_MS. The reservation is kept for LATE_MS more, so that a late return can be told from a new request.
local WINDOW_PART, WINDOW_MIN_MS, LATE_MS = 0.2, 2000, 60000
local LONGEST_WINDOW_MS = 12000
-- New requests leave room for a client from this time before its hint ends, at most: see sum_due.
local MAX_LEAD_MS = 60000
-- The parts of a member that say when a client's window ends, and how large its job is.
local DUE_PATTERN = '^[^|]+|%d+|%x+|(%d+)|(%d+)|(%d+)|(%d+)|[01]$'
-- A hint is at most a minute, so a reservation whose window ends later than this was not written by a script.
local LATEST_END_MS = 75000
-- One refusal in 16 examines a few members that were chosen at random, and removes those that are no longer needed:
-- their tenants may never send another request.
local LOOK_ONE_IN, LOOKED_AT = 16, 64
-- A refusal of a tenant that has as many reservations as it may have examines this many of them.
local PASSED_AT_ONCE = 4
-- The workers' estimate of a prompt's length moves a little between two requests with the same prompt.
local LONGER_PART, LONGER_TOKENS = 1.125, 8

-- Returns the parts of a member, or nil if its reservation is over or it was not written by a script.
local function read_reservation(member)
  local name, retry_ms, id, end_ms, cost_mwt, prompt, max, judged =
    string.match(member, '^([^|]+)|(%d+)|(%x+)|(%d+)|(%d+)|(%d+)|(%d+)|([01])$')
  local ends = number(end_ms, nil, now_ms - LATE_MS, now_ms + LATEST_END_MS)
  if ends then
    return { member = member, tenant = name, retry_ms = tonumber(retry_ms), id = id, end_ms = ends,
      cost_mwt = number(cost_mwt, 0), prompt_tokens = number(prompt, 0), max_tokens = number(max, 0),
      is_judged = judged == '1' }
  end
end

-- Returns the first reservations of the request's tenant, at most `most`, in the order of their times. With `from_ms`
-- and `before_ms`, returns only those whose hints end between these times.
local function reservations_of(asked, most, from_ms, before_ms)
  return redis.call('ZRANGEBYLEX', k_reservations .. asked.slug,
    '[' .. asked.tenant .. '|' .. (from_ms and digits(from_ms) or ''),
    '(' .. asked.tenant .. (before_ms and '|' .. digits(before_ms) or '}'), 'LIMIT', 0, most)
end

-- Finds the reservation of a request that its client sends again, and notes whether the client is due or early. A
-- return ticket names the time of its reservation. Without one (`retry_ms` is 0), of several requests with the same
-- body, the one that was expected first is taken to be the one that returns. A reservation is good for the same request
-- only.
local function find_reservation(asked, seen, id, retry_ms)
  local best
  for _, member in ipairs(reservations_of(asked, MAX_RESERVED)) do
    local found = string.find(member, '|' .. id .. '|', 1, true) and read_reservation(member)
    if found and found.id == id and (retry_ms == 0 or retry_ms == found.retry_ms)
      and (not best or best.end_ms < now_ms) and asked.max_tokens == found.max_tokens
      and asked.prompt_tokens <= LONGER_PART * found.prompt_tokens + LONGER_TOKENS then
      best = found
    end
  end
  seen.reservation = best
  seen.is_early = best and now_ms < best.retry_ms
  seen.is_due = best and not seen.is_early and now_ms <= best.end_ms
end

-- Returns the sum of the jobs of the tenant's other clients that are due, now or within the time in which a tenant's
-- queue drains (PENSTOCK_MAX_WAIT_MS): how many they are, their tokens and their costs. The sum is empty if the client
-- itself is due.
local function sum_due(asked, seen)
  if seen.due then
    return seen.due
  end
  local due, own = { jobs = 0, tokens = 0, cost_mwt = 0 }, seen.reservation and seen.reservation.member
  local soon_ms = now_ms + math.min(MAX_LEAD_MS, seen.max_wait_ms)
  local members = seen.is_due and {} or reservations_of(asked, MAX_RESERVED, now_ms - LONGEST_WINDOW_MS, soon_ms)
  for i = 1, #members do
    local end_ms, cost_mwt, prompt, max = string.match(members[i], DUE_PATTERN)
    if number(end_ms, nil, now_ms, now_ms + LATEST_END_MS) and members[i] ~= own then
      due.jobs, due.cost_mwt = due.jobs + 1, due.cost_mwt + number(cost_mwt, 0)
      due.tokens = due.tokens + number(prompt, 0) + number(max, 0)
    end
  end
  seen.due = due
  return due
end

-- Ends the reservation of a request that came back. If this is its first return, counts how accurate its hint was:
-- `early` and `late` for a return outside the window, otherwise the verdict, `admitted` or `refused`.
local function end_reservation(asked, seen, decision)
  local found = seen.reservation
  redis.call('ZREM', k_reservations .. asked.slug, found.member)
  if not found.is_judged then
    local result = seen.is_early and 'early' or seen.is_due and decision or 'late'
    stats.count('hint_returns|' .. stats.label_of(asked.tenant) .. '|' .. result)
  end
end

local function forget_reservations(key)
  local seen = redis.call('ZRANDMEMBER', key, LOOKED_AT, 'WITHSCORES')
  for i = 1, #seen, 2 do
    if tonumber(seen[i + 1]) ~= 0 or not read_reservation(seen[i]) then
      redis.call('ZREM', key, seen[i])
    end
  end
end

-- Makes room for another reservation of the tenant: removes those of the first that are over, or else one whose window
-- has passed. Returns false if the tenant or the pool has as many as it may have.
local function has_room_for_reservation(asked, seen, key)
  local most = math.min(MAX_RESERVED, seen.max_waiting)
  local held = redis.call('ZLEXCOUNT', key, '[' .. asked.tenant .. '|', '(' .. asked.tenant .. '}')
  if held >= most then
    for _, member in ipairs(reservations_of(asked, PASSED_AT_ONCE)) do
      local found = read_reservation(member)
      if not found or held >= most and found.end_ms < now_ms then
        held = held - redis.call('ZREM', key, member)
      end
    end
  end
  return held < most and redis.call('ZCARD', key) < MAX_IN_POOL
end

-- Keeps that the client of a refused request was told to send it again after `hint_ms`. Returns the end of the hint and
-- the length of the window, in ms, or 0 and 0 if there is no room for the reservation. If a proxy repeats a request,
-- the new reservation replaces that of the first attempt, whose answer the client does not see.
local function reserve(asked, seen, id, hint_ms)
  local key, is_judged = k_reservations .. asked.slug, seen.reservation and (seen.is_early or seen.is_due)
  if seen.is_proxys_repeat then
    find_reservation(asked, seen, id, 0)
    if not seen.reservation then
      return 0, 0
    end
    redis.call('ZREM', key, seen.reservation.member)
    is_judged = seen.reservation.is_judged
  end
  if now_us % LOOK_ONE_IN == 0 then
    forget_reservations(key)
  end
  if not has_room_for_reservation(asked, seen, key) then
    return 0, 0
  end
  local retry_ms, window_ms = now_ms + hint_ms, math.floor(math.max(WINDOW_MIN_MS, WINDOW_PART * hint_ms))
  for later_ms = 0, MAX_RESERVED do
    -- The reservation of an equal request that was refused in the same millisecond is another member.
    if redis.call('ZADD', key, 0, table.concat({ asked.tenant, digits(retry_ms), id,
      digits(retry_ms + window_ms + later_ms), digits(math.max(0, seen.cost_mwt)), digits(asked.prompt_tokens),
      digits(asked.max_tokens), is_judged and 1 or 0 }, '|')) == 1 then
      break
    end
  end
  return retry_ms, window_ms
end
