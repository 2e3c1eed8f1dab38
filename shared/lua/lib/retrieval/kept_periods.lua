-- kept_periods: counts the bytes of the entries that a tenant's cache keeps, by the period in which they expire.
-- USES clock file_bytes
-- The hash of a cache's tenant has the field `periods`: `<end of the period in s> <bytes> …`. The hash of all tenants
-- counts the same bytes, in a field for each period.

local PERIODS_FIELD = 'periods'
-- The time for which entries are kept has about this many periods.
local PERIODS = 8

-- Returns the end in s of the period in which an entry of now expires.
local function end_of_period_s(ttl_s)
  local length_s = math.max(1, math.ceil(ttl_s / PERIODS))
  return math.ceil((now_ms / 1000 + ttl_s) / length_s) * length_s
end

-- Returns the bytes of a tenant's entries by period; a spoiled field has none.
local function read_periods(of_tenant)
  local stored, found = redis.pcall('HGET', of_tenant, PERIODS_FIELD), {}
  for end_s, bytes in string.gmatch(type(stored) == 'string' and stored or '', '(%d+) (%d+)') do
    found[number(end_s, 0)] = number(bytes, 0, 0)
  end
  return found
end

-- Adds bytes, which may be negative, to a period of the tenant and of all tenants.
local function count_kept(of_tenant, of_all, period_s, bytes)
  local found, told = read_periods(of_tenant), {}
  found[period_s] = (found[period_s] or 0) + bytes
  for end_s, sum in pairs(found) do
    if sum > 0 and end_s * 1000 > now_ms then
      told[#told + 1] = whole(end_s) .. ' ' .. whole(sum)
    end
  end
  if #told > 0 then
    redis.call('HSET', of_tenant, PERIODS_FIELD, table.concat(told, ' '))
  else
    redis.call('HDEL', of_tenant, PERIODS_FIELD)
  end
  file_bytes.add_to_period(of_all, period_s, bytes)
end

-- Takes the bytes of a tenant's hash, which has been deleted, from those of all tenants.
local function uncount_kept(of_all, periods)
  for end_s, bytes in pairs(periods) do
    if end_s * 1000 > now_ms then
      file_bytes.add_to_period(of_all, end_s, -bytes)
    end
  end
end
