-- quote: what admit would say of a job, and when it would end; writes nothing and promises nothing.
-- KEYS books
-- ARGV
--   tenant text · who asks
--   slug text · the model as it stands in keys
--   prompt_tokens int · estimate at the door
--   max_tokens int · the most the job may generate
--   deadline_in_ms int · patience from now
--   start_within_ms int · patience to the first token, 0 for none
--   degrade int · 1 when the job may be changed so that it fits
-- ANSWERS quoted
--   quoted: cost in thousandths of a weighted token, ms until its end or -1 while rates are unknown, then '' or what
--   follows `refused` of admit, with the time to come back unspread and no appointment made
-- KEEPS 6
-- USES clock books lengths verdict tier
-- RARELY shorten

local ask = { tenant = tenant, slug = slug, prompt_tokens = prompt_tokens, max_tokens = max_tokens, cost_mwt = -1,
  deadline_in_ms = deadline_in_ms, start_within_ms = start_within_ms, degrade = degrade }
look(ask)
if ask.tiered then
  ask.tier = tier_in_force(unpack(redis.call('HMGET', k_books .. slug, 'tier', 'tier_look_ms')))
end
local refusal = verdict(ask)
local eta_ms = ask.finish_ms and math.floor(ask.finish_ms) or -1
if not refusal then
  return { 'quoted', ask.cost_mwt, eta_ms, '' }
end
local reason, limit, value, max, base_ms, hopeless = unpack(refusal)
return { 'quoted', ask.cost_mwt, eta_ms, reason, limit, value, max, ask.inflight, ask.max_inflight,
  math.floor(math.max(50, math.min(60000, base_ms))), hopeless or 0, math.floor(ask.own_ms) }
