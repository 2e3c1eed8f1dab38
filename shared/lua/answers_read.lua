-- answers_read: returns an answer of a tenant's semantic cache; writes nothing.
-- KEYS answers
-- ARGV
--   tenant text · the tenant that asks
--   digest text · digest of the scope and the prompt
-- ANSWERS found missing
--   found: how long ago it was stored, in ms; the content that answers_keep stored
--   missing: nothing
-- KEEPS 9
-- USES clock cached_answers

local entry = cached_answers.read_answer(redis.call('HGET', k_answers .. tenant, digest))
if not entry or now_ms >= entry.expires_ms then
  return { 'missing' }
end
return { 'found', math.max(0, now_ms - entry.kept_ms), entry.content }
