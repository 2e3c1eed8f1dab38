-- hint: when a refused client shall come back, and how right earlier hints were.
-- KEYS appointments promises asked
-- USES clock stats

local HINT_MIN_MS, HINT_MAX_MS = 50, 60000
-- Requests refused lately are known by id, so that a proxy's repeat books nothing twice.
local ASKED_KEPT = 1024
-- The ledgers are trimmed by one refusal in sixteen: often enough for their bounds, and a refusal must be cheap.
local TRIM_ONE_IN = 16

-- ms in which the tenant's share of the pool does so much work.
local function share_ms(ask, mwt)
  return mwt * ask.weights_milli / (ask.weight_milli * ask.mu)
end

-- The ledger: the moment at which its share would have done all the work that the tenant asked for, refused or taken;
-- at most the longest hint beyond what waits of it.
local function ask_more(ask, key, ahead)
  local most = now_ms + share_ms(ask, ask.own_mwt) + HINT_MAX_MS
  -- In place of an older job of the same supersede_key it asks for the difference.
  local next_ms = math.min(most, math.max(ahead, now_ms) + share_ms(ask, ask.cost_mwt - (ask.replaced_mwt or 0)))
  redis.call('ZADD', key, string.format('%.0f', next_ms), ask.tenant)
  return next_ms
end

-- ms until the tenant's appointment: what it asked for beyond what may wait of it. A tenant that asks for more than
-- its share, on and on, is told to stay away ever longer, for whoever comes back stands where a new job would.
-- A client that comes again books nothing while its tenant's appointment lies ahead.
local function appoint(ask, attempt, request_id)
  local key = k_appointments .. ask.slug
  local ahead = tonumber(redis.call('ZSCORE', key, ask.tenant) or 0)
  local again = redis.call('ZADD', k_asked, now_ms, request_id) == 0
  if not ask.rated then
    return math.max(0, ahead - now_ms)
  end
  if not again and not (attempt > 0 and ahead > now_ms) then
    ahead = ask_more(ask, key, ahead)
  end
  return math.max(0, ahead - now_ms - share_ms(ask, ask.own_mwt))
end

-- What was taken was asked for too; at its first attempt, for a refused one is in the ledger already.
local function book_taken(ask, attempt)
  if attempt == 0 and ask.rated then
    local key = k_appointments .. ask.slug
    ask_more(ask, key, tonumber(redis.call('ZSCORE', key, ask.tenant) or 0))
    if now_us % TRIM_ONE_IN == 0 then
      redis.call('ZREMRANGEBYSCORE', key, '-inf', now_ms)
    end
  end
end

-- Refusals that say nothing of what the tenant may still ask of the pool: they are over when they are over.
local OWN_TIME = { no_worker = true, draining = true, rate_limited = true }

-- Never below base. Doubled for each attempt up to three, and spread by up to a fifth: clients sleep exactly what
-- they are told, so the door must keep them from coming back together.
local function hint_for(ask, reason, base_ms, hopeless, attempt, request_id)
  local digest = tonumber(string.sub(redis.sha1hex(request_id), 1, 4), 16)
  local spread = digest / 65536 * 0.2
  local tries = 2 ^ math.max(0, math.min(attempt, 3))
  local appointed_ms = not OWN_TIME[reason] and hopeless ~= 1 and appoint(ask, attempt, request_id) or 0
  local wanted_ms = math.max(base_ms, appointed_ms) * tries * (1 + spread)
  local hint_ms = math.floor(math.max(HINT_MIN_MS, math.min(HINT_MAX_MS, wanted_ms)))
  local key = k_promises .. ask.slug
  redis.call('ZADD', key, now_ms + hint_ms, ask.tenant)
  if digest % TRIM_ONE_IN == 0 then
    redis.call('ZREMRANGEBYRANK', k_asked, 0, -ASKED_KEPT - 1)
    redis.call('ZREMRANGEBYSCORE', k_appointments .. ask.slug, '-inf', now_ms)
    redis.call('ZREMRANGEBYSCORE', key, '-inf', now_ms - HINT_MAX_MS)
  end
  return hint_ms
end

-- A client that comes again is one that heeded a hint or did not: how far from the promise it is taken.
local function judge_hint(ask, attempt)
  if attempt > 0 then
    local promised_ms = tonumber(redis.call('ZSCORE', k_promises .. ask.slug, ask.tenant) or nil)
    if promised_ms then
      observe('retry_hint_error', math.abs(now_ms - promised_ms))
    end
  end
end
