-- quote: predicts the verdict of admit for a job, and when the job would end; writes nothing and reserves nothing.
-- KEYS books routes
-- ARGV
--   tenant text · the tenant that would own the job
--   slug text · the model's name in the form used in store keys
--   priority int · the job's priority: -1 for a batch job, 0 or 1
--   prompt_tokens int · the door's estimate of the prompt's length
--   max_tokens int · the largest number of tokens that the job may generate
--   candidates int · how many answers share them
--   deadline_in_ms int · ms from now to the deadline
--   start_within_ms int · ms from now to the start deadline, 0 for none
--   start_named int · 1 if the client itself named the start deadline
--   longest_in_ms int · ms to which a deadline that the client did not name may be extended; 0 if it named one
--   degrade int · 1 if the answer may be shortened under overload
--   private int · 1 if the job may run only in pools marked as local
--   key_id text · id of the client's API key if the key has bounds of its own, else ''
--   key_rpm int · the key's requests per minute, 0 for no bound
--   key_tpm int · the key's tokens per minute, 0 for no bound
--   key_max_waiting int · the key's largest number of queued jobs, 0 for no bound
--   request_bytes int · length of the request and its metadata as JSON
--   metadata_bytes int · length of the metadata as JSON
--   answer_bytes int · the most bytes that the answer is expected to take in the store, with its event stream
--   id text · the id that the job would have, which decides its share of a route
--   routing_json text · the JSON of lib/admission/routes.lua if the request names a route, '' if it names a pool
-- ANSWERS quoted rerouted
--   quoted: the job's cost in thousandths of a weighted token; the most that it can cost by the pool's prices, in
--   millionths of the currency; ms until the job would end, and the interval of ms in which eight of ten such jobs end,
--   or -1 each while rates are unknown; the position in the route, from 1, of the pool that all these figures describe,
--   or 0 if the request names a pool; why the route chooses it, or '' if it chooses no pool; then '' if the job would
--   be admitted, else the elements that follow `refused` in admit's answer. The retry hint takes neither the
--   appointment nor earlier attempts into account, and has no per-request spread.
--   rerouted: the store's route differs from `routing_json`; the caller has to read it again
-- KEEPS 6
-- USES clock facts checks tier tenant_bytes return_room routes spending
-- RARELY add_elsewhere shorten check_load check_room choose_pool fits_after_queued

local routing = routing_json ~= '' and cjson.decode(routing_json) or nil
if routing and redis.call('HGET', k_routes, routing.name) ~= routing.text then
  return { 'rerouted' }
end

-- Returns the request as it is in a pool that the door has described, which is this step of the route.
local function request_in(pool, step)
  return checks.open_request({ step = step, tenant = tenant, slug = pool.slug, priority = priority,
    is_batch = priority < 0, prompt_tokens = pool.prompt_tokens, max_tokens = pool.max_tokens, candidates = candidates,
    cost_mwt = -1, deadline_in_ms = deadline_in_ms, start_within_ms = start_within_ms, start_named = start_named == 1,
    longest_in_ms = longest_in_ms, degrade = degrade, is_private = private == 1,
    key = facts.asked_key(key_id, key_rpm, key_tpm, key_max_waiting),
    bytes = tenant_bytes.record_bytes(metadata_bytes, 0, 0) + request_bytes + pool.answer_bytes })
end
-- Runs the checks of admission without its writes.
local function run_checks(request)
  local asked, seen, verdict = request.asked, facts.look(request.asked), request.verdict
  request.seen = seen
  return_room.look_at_room(asked, seen)
  if seen.has_tier then
    local pool_fields = read_fields(k_books .. asked.slug, { 'tier', 'tier_look_ms' })
    verdict.tier = tier.tier_in_force(pool_fields.tier, pool_fields.tier_look_ms, seen.main_mwt)
  end
  return checks.first_refusal(asked, seen, verdict)
end

local request, why, refusal
if routing then
  request, why, refusal = routes.choose_pool(routing, id, request_in, run_checks)
else
  request = request_in({ slug = slug, prompt_tokens = prompt_tokens, max_tokens = max_tokens,
    answer_bytes = answer_bytes }, 0)
  refusal = run_checks(request)
end
local asked, seen, verdict = request.asked, request.seen, request.verdict
local eta_ms, early_ms, late_ms = -1, -1, -1
if verdict.eta_ms then
  eta_ms, early_ms, late_ms = math.floor(verdict.eta_ms), math.floor(verdict.early_ms), math.floor(verdict.late_ms)
end
if not refusal then
  return { 'quoted', seen.cost_mwt, spending.most_of(asked, seen), eta_ms, early_ms, late_ms, asked.step, why or '',
    '' }
end
local hint_ms = verdict.hint_ms or math.floor(math.max(50, math.min(60000, refusal.base_ms)))
return { 'quoted', seen.cost_mwt, spending.most_of(asked, seen), eta_ms, early_ms, late_ms, asked.step, '',
  refusal.reason, refusal.limit, refusal.value, refusal.max, seen.inflight, seen.max_inflight, hint_ms,
  refusal.is_hopeless and 1 or 0, math.floor(verdict.compute_ms),
  (verdict.hint_ms or refusal.base_ms > 60000) and 1 or 0, 0, 0, verdict.resets_ms or 0 }
