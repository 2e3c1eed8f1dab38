-- capacity: says whether an offered job fits into the free slots and KV cells of its pool, after all queued jobs.
-- KEYS pool worker active batch tenant
-- USES clock priority

-- At most this many workers, and this many owners with queued jobs, are looked at. If there are more, the others are
-- taken to be like those.
local MAX_SUMMED = 64

local function cells_of_pool(slug)
  local key, oldest_ms, cells = k_pool .. slug, now_ms - LIVE_MS, 0
  local names = redis.call('ZRANGEBYSCORE', key, oldest_ms, '+inf', 'LIMIT', 0, MAX_SUMMED)
  for i = 1, #names do
    cells = cells + number(redis.call('HGET', k_worker .. names[i], 'cells'), 0, 0)
  end
  return cells * redis.call('ZCOUNT', key, oldest_ms, '+inf') / math.max(1, #names)
end

-- Returns how many jobs that are not batch jobs the owners in a set have queued in a pool, and the tokens of all their
-- queued jobs: of the prompts and of the longest answers. Stops adding when there are more than `most` jobs.
local function queued_in(slug, set, most)
  local owners, jobs, tokens = redis.call('ZRANGE', set, 0, MAX_SUMMED - 1), 0, 0
  local all, of_batches, of_tokens = 'n|' .. slug, 'bn|' .. slug, 't|' .. slug
  local names = { all, of_batches, of_tokens }
  for i = 1, #owners do
    local own = read_fields(k_tenant .. owners[i], names)
    jobs = jobs + priority.counted_work(false, number(own[all], 0, 0), number(own[of_batches], 0, 0))
    tokens = tokens + number(own[of_tokens], 0, 0)
    if jobs > most then
      break
    end
  end
  local times = redis.call('ZCARD', set) / math.max(1, #owners)
  return jobs * times, tokens * times
end

-- Whether each job that is queued before the request's job, and then this, can have a free slot and KV cells.
local function fits_after_queued(asked, seen)
  local slug, free_slots = asked.slug, seen.slots - seen.running
  if asked.is_batch and seen.pool_inflight >= seen.slots then
    return false
  end
  local jobs, tokens = queued_in(slug, k_active .. slug, asked.is_batch and math.huge or free_slots)
  if asked.is_batch then
    local _, batch_tokens = queued_in(slug, k_batch .. slug, math.huge)
    jobs, tokens = seen.pool_inflight - seen.running, tokens + batch_tokens
  elseif seen.replaced_mwt then
    jobs = jobs - 1
  end
  return jobs < free_slots
    and seen.running_tokens + tokens + asked.prompt_tokens + asked.max_tokens <= cells_of_pool(slug)
end

-- Whether the request's job gets a free slot at once. If nothing is queued before it, only the slot counts: a job that
-- is too large for the free cells is then the first that gets some.
local function fits_at_once(asked, seen)
  return seen.running < seen.slots and (seen.owners_before == 0 or fits_after_queued(asked, seen))
end
