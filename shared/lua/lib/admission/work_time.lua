-- work_time: how long a pool takes to do an amount of work.
-- KEYS
-- USES

-- Returns how long the tenant's share of the pool takes to do `mwt` of work, in ms. The rates must be known.
local function share_ms(request, mwt)
  return mwt * request.total_weight_milli / (request.weight_milli * request.mu)
end

-- Returns how long the pool takes to do `mwt` of work, in ms. If `shared` is true, returns how long the tenant's share
-- of the pool takes.
local function drain_ms(request, mwt, shared)
  if not request.has_rates then
    -- While rates are unknown, return the mean time between the ends of consecutive jobs when all slots are busy.
    -- Before the first job has ended, return 1 s.
    return request.run_ms and request.run_ms / math.max(1, request.slots) or 1000
  end
  return mwt / request.mu * (shared and request.total_weight_milli / request.weight_milli or 1)
end
