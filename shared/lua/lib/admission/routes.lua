-- routes: chooses the pool of a request that names a route, among the route's pools in their order.
-- KEYS rq_job
-- USES clock spending stats facts
-- A route is a JSON object whose field `pools` is a list of steps, each with the name of a pool and the conditions
-- under which the pool takes a request (shared/jobs/route.py). For a request that names a route, the door passes
-- another object: the `name` and the stored `text` of the route; the `features` that the request uses; whether it
-- `escalates`; and in `pools`, for each step, the pool's `model` and `slug`, the request's `prompt_tokens`,
-- `max_tokens` and `answer_bytes` there, and `cannot`, which is a reason if the pool's engine cannot run the request,
-- else ''. Other arguments of admit that depend on the pool are then those of the first step whose pool can run it.

-- The shares of steps are in ten-thousandths.
local WHOLE_SHARE = 10000
-- After this many ms it is worth asking again whether a job would end early enough.
local ASK_AGAIN_MS = 2000

-- Returns the refusal by a step whose condition `word` the request does not meet. `in_ms` is the time after which it
-- may meet it, nil for never.
local function unsuitable(word, value, bound, in_ms)
  return { reason = 'no_suitable_pool', limit = word, value = math.floor(value), max = math.floor(bound),
    base_ms = in_ms or 0, is_hopeless = not in_ms }
end

-- Returns the ms until one of the windows is open, 0 if one is. A window is a list of two minutes of a day in UTC; the
-- second is not part of it, and may be on the next day.
local function opens_in_ms(windows)
  local today_ms, soonest_ms = now_ms % spending.DAY_MS, spending.DAY_MS
  for _, window in ipairs(windows) do
    local from_ms, to_ms = 60000 * window[1], 60000 * window[2]
    local length_ms, passed_ms = (to_ms - from_ms - 1) % spending.DAY_MS + 1, (today_ms - from_ms) % spending.DAY_MS
    soonest_ms = math.min(soonest_ms, passed_ms < length_ms and 0 or spending.DAY_MS - passed_ms)
  end
  return soonest_ms
end

local function includes(list, word)
  for _, other in ipairs(list) do
    if other == word then
      return true
    end
  end
  return false
end

-- Returns the refusal by a step whose conditions on the request alone are not met, or nil. `id` decides which requests
-- belong to the share of a step.
local function check_step(step, pool, features, id)
  if pool.cannot ~= '' then
    return unsuitable(pool.cannot, 1, 0)
  end
  if step.share and tonumber(string.sub(redis.sha1hex(id), 1, 8), 16) % WHOLE_SHARE >= step.share then
    return unsuitable('share', 1, 0)
  end
  if step.min_prompt and pool.prompt_tokens < step.min_prompt then
    return unsuitable('size', pool.prompt_tokens, step.min_prompt)
  elseif step.max_prompt and pool.prompt_tokens > step.max_prompt then
    return unsuitable('size', pool.prompt_tokens, step.max_prompt)
  elseif step.max_answer and pool.max_tokens > step.max_answer then
    return unsuitable('size', pool.max_tokens, step.max_answer)
  end
  for _, feature in ipairs(step.features and features or {}) do
    if not includes(step.features, feature) then
      return unsuitable('features', 1, 0)
    end
  end
  local in_ms = step.windows and opens_in_ms(step.windows) or 0
  return in_ms > 0 and unsuitable('window', 1, 0, in_ms) or nil
end

-- Returns the refusal by a step whose conditions on the price and the predicted end in its pool are not met, or nil.
local function check_prospects(step, asked, seen, verdict)
  if step.max_price_micro and spending.most_of(asked, seen) > step.max_price_micro then
    return unsuitable('price', spending.most_of(asked, seen), step.max_price_micro)
  end
  local latest_ms = step.end_within and step.end_within / WHOLE_SHARE * verdict.deadline_in_ms
  if latest_ms and verdict.eta_ms and verdict.eta_ms > latest_ms then
    return unsuitable('deadline', verdict.eta_ms, latest_ms, ASK_AGAIN_MS)
  end
end

-- Returns why a pool did not take the request: a value of `RouteReason` in shared/jobs/route.py.
local function why_passed(refusal)
  if refusal.reason == 'no_suitable_pool' then
    return refusal.limit
  end
  return refusal.reason == 'budget_exhausted' and 'budget' or 'spill'
end

-- Whether the first refusal is more hopeful than the second: its client can come back, or can come back sooner.
local function is_sooner(refusal, than)
  local is_hopeless, than_is = refusal.is_hopeless or false, than.is_hopeless or false
  return not is_hopeless and than_is or is_hopeless == than_is and refusal.base_ms < than.base_ms
end

-- Returns the request as it is in the first pool that takes it, and the reason. Otherwise returns the request as it is
-- in the pool whose refusal is the most hopeful, nil, and that refusal. `request_in` returns the request in a pool that
-- the door has described, which is a step with this number, and `run_checks` assesses it.
local function choose_pool(routing, id, request_in, run_checks)
  local steps, best, best_refusal, passed = cjson.decode(routing.text).pools, nil, nil, nil
  for i, step in ipairs(steps) do
    local pool = routing.pools[i]
    local request, refusal = request_in(pool, i), check_step(step, pool, routing.features, id)
    if not refusal then
      refusal = run_checks(request) or check_prospects(step, request.asked, request.seen, request.verdict)
    end
    if not refusal then
      return request, passed or step.share and 'canary' or 'first'
    end
    -- That a request is not part of a share is no reason: it is meant for another pool.
    passed = passed or refusal.limit ~= 'share' and why_passed(refusal) or nil
    if not best or is_sooner(refusal, best_refusal) then
      best, best_refusal = request, refusal
    end
  end
  best.seen = best.seen or facts.look(best.asked)
  return best, nil, best_refusal
end

-- Stores how a job was routed. The steps after its pool whose conditions it meets are kept if it may escalate.
local function keep_route(routing, asked, why, id)
  redis.call('HSET', k_rq_job .. id, 'origin', asked.tenant .. '.' .. asked.slug, 'penstock_route', routing.name,
    'penstock_routed', why)
  stats.count('routed|' .. routing.name .. '|' .. asked.model .. '|' .. why)
  if not routing.escalates then
    return
  end
  local steps, later = cjson.decode(routing.text).pools, {}
  for i = asked.step + 1, #steps do
    if not check_step(steps[i], routing.pools[i], routing.features, id) then
      routing.pools[i].max_price_micro = steps[i].max_price_micro
      later[#later + 1] = routing.pools[i]
    end
  end
  if #later > 0 then
    redis.call('HSET', k_rq_job .. id, 'penstock_later_pools', cjson.encode(later))
  end
end
