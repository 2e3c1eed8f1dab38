-- quote: predicts the verdict of admit for a job, and when the job would end; writes nothing and reserves nothing.
-- KEYS books
-- ARGV
--   tenant text · the tenant that would own the job
--   slug text · the model's name in the form used in store keys
--   priority int · the job's priority: -1 for a batch job, 0 or 1
--   prompt_tokens int · the door's estimate of the prompt's length
--   max_tokens int · the largest number of tokens that the job may generate
--   deadline_in_ms int · ms from now to the deadline
--   start_within_ms int · ms from now to the start deadline, 0 for none
--   degrade int · 1 if the answer may be shortened under overload
--   private int · 1 if the job may run only in pools marked as local
--   key_id text · id of the client's API key if the key has bounds of its own, else ''
--   key_rpm int · the key's requests per minute, 0 for no bound
--   key_tpm int · the key's tokens per minute, 0 for no bound
--   key_max_waiting int · the key's largest number of queued jobs, 0 for no bound
--   request_bytes int · length of the request and its metadata as JSON
--   metadata_bytes int · length of the metadata as JSON
--   answer_bytes int · the most bytes that the answer is expected to take in the store, with its event stream
-- ANSWERS quoted
--   quoted: the job's cost in thousandths of a weighted token; ms until the job would end, and the interval of ms in
--   which eight of ten such jobs end, or -1 each while rates are unknown; then '' if the job would be admitted, else the elements that follow `refused` in admit's answer. The retry
--   hint takes neither the appointment nor earlier attempts into account, and has no per-request spread.
-- KEEPS 6
-- USES clock books lengths verdict tier kept room
-- RARELY shorten check_room

local request = { tenant = tenant, slug = slug, prompt_tokens = prompt_tokens, max_tokens = max_tokens, cost_mwt = -1,
  priority = priority, is_batch = priority < 0, is_private = private == 1,
  deadline_in_ms = deadline_in_ms, start_within_ms = start_within_ms, degrade = degrade,
  key = key_bounds(key_id, key_rpm, key_tpm, key_max_waiting) }
request.bytes = record_bytes(metadata_bytes, 0, 0) + request_bytes + answer_bytes
look(request)
look_at_room(request)
if request.has_tier then
  local pool_fields = redis.call('HMGET', k_books .. slug, 'tier', 'tier_look_ms')
  request.tier = tier_in_force(pool_fields[1], pool_fields[2], request.main_mwt)
end
local refusal = verdict(request)
local eta_ms, early_ms, late_ms = -1, -1, -1
if request.eta_ms then
  eta_ms, early_ms, late_ms = math.floor(request.eta_ms), math.floor(request.early_ms), math.floor(request.late_ms)
end
if not refusal then
  return { 'quoted', request.cost_mwt, eta_ms, early_ms, late_ms, '' }
end
local reason, limit, value, max, base_ms, infeasible = unpack(refusal)
return { 'quoted', request.cost_mwt, eta_ms, early_ms, late_ms, reason, limit, value, max, request.inflight,
  request.max_inflight, request.hint_ms or math.floor(math.max(50, math.min(60000, base_ms))), infeasible or 0, math.floor(request.compute_ms),
  (request.hint_ms or base_ms > 60000) and 1 or 0, 0, 0, request.resets_ms or 0 }
