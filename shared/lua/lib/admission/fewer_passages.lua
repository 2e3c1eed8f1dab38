-- fewer_passages: says when a request is assessed once more, with fewer of the passages that were found for it.
-- KEYS
-- docs/adr/0096-passages-are-found-at-the-door.md gives the reasons.

-- The refusals that a shorter prompt may avert, and the word for each that clients get.
local AVERTED = { tenant_tokens_full = 'tokens', tenant_share_full = 'tokens', tenant_bytes_full = 'bytes',
  budget_exhausted = 'tokens', rate_limited = 'tokens', deadline_unmeetable = 'deadline', no_suitable_pool = 'size' }

-- Returns why a request is assessed with fewer passages, or nil if it is not: because it would be refused, or at tiers
-- 1 and 2, unless a slot is free for it.
local function why_fewer(request, refusal, is_at_tier)
  if refusal then
    return AVERTED[refusal.reason]
  end
  local verdict = request.verdict
  return is_at_tier and verdict.tier > 0 and not verdict.idle and 'tier ' .. verdict.tier or nil
end

-- Describes the pools of a route as they are for the request with fewer passages, and in a second call as before.
local function swap_tokens(routing)
  for _, pool in ipairs(routing and routing.pools or {}) do
    pool.prompt_tokens, pool.fewer_tokens = pool.fewer_tokens, pool.prompt_tokens
  end
end
