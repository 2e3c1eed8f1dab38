-- slots_in_use: counts the running jobs of a pool's tenants and groups: those that compute, and those that are paused.
-- KEYS rows
-- The field `c|<owner>` of a pool's hash is the number of the owner's jobs that compute, each in one row of a worker's
-- steps. `p|<tenant>` is the number of the tenant's jobs that are paused. `cb|<owner>` and `pb|<tenant>` are the
-- numbers of the batch jobs among them. Recount computes all of them anew from the jobs.
local function rows_of(slug, kind, owner)
  return number(redis.call('HGET', k_rows .. slug, kind .. '|' .. owner), 0, 0)
end

-- Returns the number of all jobs of a kind, and of the batch jobs among them.
local function rows_with_batch(slug, kind, owner)
  local stored = redis.call('HMGET', k_rows .. slug, kind .. '|' .. owner, kind .. 'b|' .. owner)
  return number(stored[1], 0, 0), number(stored[2], 0, 0)
end

local function main_rows_of(slug, kind, owner)
  local all, batch = rows_with_batch(slug, kind, owner)
  return math.max(0, all - batch)
end

local function count_row(slug, kind, owner, by)
  local field, rows = kind .. '|' .. owner, rows_of(slug, kind, owner) + by
  if rows > 0 then
    redis.call('HSET', k_rows .. slug, field, rows)
  else
    redis.call('HDEL', k_rows .. slug, field)
  end
end
