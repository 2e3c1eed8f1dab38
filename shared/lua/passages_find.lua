-- passages_find: returns the passages that were stored for a query of a tenant; writes nothing.
-- KEYS passages
-- ARGV
--   tenant text · the tenant whose collection is searched
--   digest text · digest of the collection's name, the query, the filter, the number of passages and the mode
-- ANSWERS found missing
--   found: now in ms; how long ago they were stored, in ms; the content that passages_keep stored
--   missing: now in ms
-- KEEPS 9
-- USES clock cached_passages

local entry = cached_passages.read_entry(redis.call('HGET', k_passages .. tenant, digest))
if not entry or now_ms >= entry.expires_ms then
  return { 'missing', now_ms }
end
return { 'found', now_ms, math.max(0, now_ms - entry.kept_ms), entry.content }
