-- worker_states: judges whether live workers claim jobs, and whether they last.
-- KEYS worker
-- USES clock crashes

local MAX_JUDGED = 64

-- Returns whether all these live workers have reported that they claim no more jobs, and whether all others are new in
-- pools whose workers restart again and again. More than MAX_JUDGED are not believed to do either all at once.
local function judge_workers(live)
  if #live == 0 or #live > MAX_JUDGED then
    return false, false
  end
  local all_drain, new_until_ms = true, {}
  for i = 1, #live do
    local worker = read_fields(k_worker .. live[i], { 'draining', 'slug', 'since_ms' })
    if worker.draining ~= '1' then
      local slug = worker.slug or ''
      new_until_ms[slug] = new_until_ms[slug] or crashes.ms_of_a_new_worker(slug)
      all_drain = false
      if now_ms - number(worker.since_ms, 0, 0, now_ms) >= new_until_ms[slug] then
        return false, false
      end
    end
  end
  return all_drain, not all_drain
end
