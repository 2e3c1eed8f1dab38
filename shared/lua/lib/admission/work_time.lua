-- work_time: how long a pool takes to do an amount of work.
-- KEYS
-- USES

-- Returns how long the tenant's share of the pool takes to do `mwt` of work, in ms. The rates must be known.
local function share_ms(seen, mwt)
  return mwt * seen.total_weight_milli / (seen.weight_milli * seen.mu)
end

-- Returns how long the pool takes to do `mwt` of work, in ms. If `shared` is true, returns how long the tenant's share
-- of the pool takes.
local function drain_ms(seen, mwt, shared)
  if not seen.has_rates then
    -- While rates are unknown, return the mean time between the ends of consecutive jobs when all slots are busy.
    -- Before the first job has ended, return 1 s.
    return seen.run_ms and seen.run_ms / math.max(1, seen.slots) or 1000
  end
  return mwt / seen.mu * (shared and seen.total_weight_milli / seen.weight_milli or 1)
end
