-- tier: tracks how overloaded a pool is, as a tier from 0 to 2.
-- KEYS books
-- USES clock
-- Tiers are used only if PENSTOCK_DEGRADATION is on. docs/degradation.md explains what each tier does.

-- Tier 1 begins when the pressure exceeds the first value, and tier 2 when it exceeds the second. The pressure is the
-- greater of two ratios: the pool's queued work (batch jobs do not count in either) divided by its largest allowed
-- backlog, and the shortest wait among the jobs claimed recently divided by PENSTOCK_MAX_WAIT_MS.
-- The values were chosen for these reasons. At loads below 1x (docs/overload.md), no work stays queued for as long
-- as a second. At 1.2x, a fifth of the largest backlog is queued. Admission's dynamic threshold lets the backlog fill
-- to a half at tier 0, and to a third at tier 1. A pressure above two fifths shows that tier 1 was not enough.
local TIER_THRESHOLDS = { 0.15, 0.4 }
-- The tier rises by one when the pressure has been above the next tier's threshold for TIER_UP_MS. It falls by one when
-- the pressure has been below half of the current tier's threshold for TIER_DOWN_MS. The tier is checked
-- at most once every TIER_CHECK_MS.
local TIER_UP_MS, TIER_DOWN_MS, TIER_CHECK_MS = 1000, 2000, 100
local HIGHEST_TIER = 2
-- The shortest wait is measured in windows of WAIT_WINDOW_MS. It is used until the same time has passed after the end
-- of its window. No answer is cut to fewer than MIN_ANSWER_TOKENS tokens.
local WAIT_WINDOW_MS, MIN_ANSWER_TOKENS = 500, 32

-- Returns the current tier. If no admission has checked the tier in the last TIER_DOWN_MS, it stays the same while the
-- pool has queued work, `queued_mwt`: all of it was admitted before, under the pressure. Without queued work it is 0.
local function tier_in_force(tier, checked_ms, queued_mwt)
  local is_over = now_ms - number(checked_ms, 0, 0, now_ms) > TIER_DOWN_MS and number(queued_mwt, 0, 0) == 0
  return is_over and 0 or math.floor(number(tier, 0, 0, HIGHEST_TIER))
end

-- Ends a tier that was not checked in the last TIER_DOWN_MS, for an admission that cannot check it because the pool's
-- rates are unknown. Jobs that are admitted without a check are not work of the time of pressure.
local function end_unchecked_tier(slug)
  local pool_fields = read_fields(k_books .. slug, { 'tier', 'tier_look_ms' })
  if pool_fields.tier and now_ms - number(pool_fields.tier_look_ms, 0, 0, now_ms) > TIER_DOWN_MS then
    redis.call('HDEL', k_books .. slug, 'tier', 'tier_look_ms', 'tier_above_ms', 'tier_below_ms')
  end
end

-- Records the shortest time that any job claimed in this window had waited. If even the shortest wait is long, then
-- every job waits long; a long mean wait would not prove that.
local function note_wait(slug, waited_ms)
  local pool_fields = read_fields(k_books .. slug, { 'wait_from_ms', 'wait_least_ms' })
  local age_ms, min_wait_ms = now_ms - number(pool_fields.wait_from_ms, 0, 0, now_ms),
    number(pool_fields.wait_least_ms, nil, 0)
  if age_ms >= WAIT_WINDOW_MS or not min_wait_ms then
    redis.call('HSET', k_books .. slug, 'wait_from_ms', now_ms, 'wait_least_ms', waited_ms)
  elseif waited_ms < min_wait_ms then
    redis.call('HSET', k_books .. slug, 'wait_least_ms', waited_ms)
  end
end

-- Computes the pressure, changes the tier by at most one, and returns the tier.
local function move_tier(asked, seen)
  local pool_fields = read_fields(k_books .. asked.slug, { 'tier', 'tier_look_ms', 'tier_above_ms', 'tier_below_ms',
    'wait_from_ms', 'wait_least_ms' })
  local tier = tier_in_force(pool_fields.tier, pool_fields.tier_look_ms, seen.main_mwt)
  local checked_ms = number(pool_fields.tier_look_ms, 0, 0, now_ms)
  if now_ms - checked_ms < TIER_CHECK_MS then
    return tier
  end
  -- After a pause in the checks, a high pressure from before the pause proves nothing. A low one does: no job was
  -- admitted in between, so the queued work only fell.
  local above_since_ms = now_ms - checked_ms <= TIER_DOWN_MS and number(pool_fields.tier_above_ms, 0, 0, now_ms) or 0
  local below_since_ms = number(pool_fields.tier_below_ms, 0, 0, now_ms)
  local pressure = seen.main_mwt / seen.max_backlog_mwt
  if now_ms - number(pool_fields.wait_from_ms, 0, 0, now_ms) < 2 * WAIT_WINDOW_MS then
    pressure = math.max(pressure, number(pool_fields.wait_least_ms, 0) / seen.max_wait_ms)
  end
  above_since_ms = pressure > (TIER_THRESHOLDS[tier + 1] or math.huge)
    and (above_since_ms > 0 and above_since_ms or now_ms) or 0
  below_since_ms = pressure < (TIER_THRESHOLDS[tier] or 0) / 2
    and (below_since_ms > 0 and below_since_ms or now_ms) or 0
  if above_since_ms > 0 and now_ms - above_since_ms >= TIER_UP_MS then
    tier, above_since_ms = tier + 1, now_ms
  elseif below_since_ms > 0 and now_ms - below_since_ms >= TIER_DOWN_MS then
    tier, below_since_ms = tier - 1, now_ms
  end
  redis.call('HSET', k_books .. asked.slug, 'tier', tier, 'tier_look_ms', now_ms, 'tier_above_ms', above_since_ms,
    'tier_below_ms', below_since_ms)
  return tier
end
