-- tier: how hard a pool is pressed, in three tiers, and how much of an answer still fits.
-- KEYS books
-- USES clock
-- Reached only where PENSTOCK_DEGRADATION is on; docs/degradation.md says what each tier does.

-- Pressed enough for tier 1 and for tier 2: so much of the work that may wait does, or even the job that was claimed
-- soonest had waited so much of the longest wait. Below 1x nothing waits for a second; at 1.2x a fifth does. The dynamic
-- threshold lets a half wait, and a third at tier 1: what stays above two fifths is what tier 1 did not help against.
local PRESSED = { 0.15, 0.4 }
-- Up after so long above, down after so long below half of its own tier's; looked at no more often than every 100 ms.
local TIER_UP_MS, TIER_DOWN_MS, TIER_LOOK_MS = 1000, 2000, 100
local HIGHEST_TIER = 2
-- The least wait is of half a second, and holds for as long again. No answer is cut to fewer tokens.
local WAITS_MS, SHORTEST_ANSWER = 500, 32

-- The tier in force: one that nobody has looked at for as long as it takes to go down is over.
local function tier_in_force(tier, looked_ms)
  return now_ms - (tonumber(looked_ms or 0) or 0) <= TIER_DOWN_MS and tonumber(tier or 0) or 0
end

-- The least time any job had waited when it was claimed: the least proves a queue that stands.
local function note_wait(slug, waited_ms)
  local held = redis.call('HMGET', k_books .. slug, 'wait_from_ms', 'wait_least_ms')
  local age_ms, least_ms = now_ms - (tonumber(held[1] or 0) or 0), tonumber(held[2] or nil)
  if age_ms >= WAITS_MS or not least_ms then
    redis.call('HSET', k_books .. slug, 'wait_from_ms', now_ms, 'wait_least_ms', waited_ms)
  elseif waited_ms < least_ms then
    redis.call('HSET', k_books .. slug, 'wait_least_ms', waited_ms)
  end
end

-- Looks at both signals and moves the tier; answers the one in force.
local function move_tier(ask)
  local held = redis.call('HMGET', k_books .. ask.slug, 'tier', 'tier_look_ms', 'tier_above_ms', 'tier_below_ms',
    'wait_from_ms', 'wait_least_ms')
  local tier, looked_ms = tier_in_force(held[1], held[2]), tonumber(held[2] or 0) or 0
  if now_ms - looked_ms < TIER_LOOK_MS then
    return tier
  end
  local goes_on = now_ms - looked_ms <= TIER_DOWN_MS
  local above_ms = goes_on and tonumber(held[3] or 0) or 0
  local below_ms = goes_on and tonumber(held[4] or 0) or 0
  local pressure = ask.pool_mwt / ask.most_mwt
  if now_ms - (tonumber(held[5] or 0) or 0) < 2 * WAITS_MS then
    pressure = math.max(pressure, (tonumber(held[6]) or 0) / ask.max_wait_ms)
  end
  above_ms = pressure > (PRESSED[tier + 1] or math.huge) and (above_ms > 0 and above_ms or now_ms) or 0
  below_ms = pressure < (PRESSED[tier] or 0) / 2 and (below_ms > 0 and below_ms or now_ms) or 0
  if above_ms > 0 and now_ms - above_ms >= TIER_UP_MS then
    tier, above_ms = tier + 1, now_ms
  elseif below_ms > 0 and now_ms - below_ms >= TIER_DOWN_MS then
    tier, below_ms = tier - 1, now_ms
  end
  redis.call('HSET', k_books .. ask.slug, 'tier', tier, 'tier_look_ms', now_ms, 'tier_above_ms', above_ms,
    'tier_below_ms', below_ms)
  return tier
end
