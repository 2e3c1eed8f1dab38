-- overview: returns the few numbers that show whether and how many jobs are admitted; writes nothing.
-- KEYS config inflight workers worker
-- ARGV
-- ANSWERS overview
--   overview: number of inflight jobs; the bound on them (a number or `auto`); number of live workers; number of their
--   slots; number of their pools' places; 1 if no new jobs are admitted, because the system or every live worker
--   drains; 1 if all live workers that do not drain belong to pools whose workers restart again and again, and are new.
--   The cost of this script does not depend on the numbers of tenants and metrics, and it looks at 64 workers at most.
-- KEEPS 1
-- USES clock schema crashes

local MAX_LOOKED = 64

-- Returns whether every live worker has reported that it claims no more jobs, and whether all others are new in pools
-- whose workers restart again and again. More than MAX_LOOKED are not believed to do either all at once.
local function judge_workers()
  local live = redis.call('ZREVRANGEBYSCORE', k_workers, '+inf', now_ms - LIVE_MS, 'LIMIT', 0, MAX_LOOKED + 1)
  if #live == 0 or #live > MAX_LOOKED then
    return false, false
  end
  local all_drain, none_lasts, new_until_ms = true, true, {}
  for i = 1, #live do
    local worker = read_fields(k_worker .. live[i], { 'draining', 'slug', 'since_ms' })
    if worker.draining ~= '1' then
      local slug = worker.slug or ''
      new_until_ms[slug] = new_until_ms[slug] or crashes.ms_of_a_new_worker(slug)
      all_drain = false
      none_lasts = none_lasts and now_ms - number(worker.since_ms, 0, 0, now_ms) < new_until_ms[slug]
    end
  end
  return all_drain, none_lasts and not all_drain
end

local settings = read_fields(k_config, { 'max_inflight', 'live_slots', 'live_places', 'draining', 'schema_oldest' })
local all_drain, none_lasts = judge_workers()
return { 'overview', redis.call('ZCARD', k_inflight), settings.max_inflight or '',
  redis.call('ZCOUNT', k_workers, now_ms - LIVE_MS, '+inf'), settings.live_slots or '', settings.live_places or '',
  (settings.draining == '1' or schema.is_outdated(settings.schema_oldest) or all_drain) and 1 or 0, none_lasts and 1
  or 0 }
