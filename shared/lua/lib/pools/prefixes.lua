-- prefixes: knows which workers have computed the beginnings of prompts, so that a job goes where its beginning is.
-- KEYS prefixes pool worker bell
-- USES clock
-- A job's `prefix` has the digests of its prompt's beginnings, shortest first, separated by spaces
-- (shared/jobs/prompt_prefix.py). Each digest covers everything before its end, so equal digests mean equal beginnings.
-- A worker's field `prefixes` has those of the last jobs that it claimed, newest first, separated by commas: about the
-- prompts whose cells it still holds. All of this is a hint: a wrong one costs the time to compute a prompt.

-- A worker is taken to hold as many prompts as it has slots, and this many at most.
local MAX_HELD = 64
-- The most workers that are known for one beginning, and the most beginnings that are known in a pool. If there are
-- more, all are forgotten: prompts that come often are known again soon.
local MAX_HOLDERS, MAX_KNOWN = 4, 4096
-- How long the beginnings of a pool are known. Then all are forgotten, so that no digest stays for longer.
local KNOWN_S = 600

-- Returns the workers in a stored list of names, newest first.
local function holders_in(stored)
  local names = {}
  for name in string.gmatch(stored or '', '%S+') do
    names[#names + 1] = name
    if #names == MAX_HOLDERS then
      break
    end
  end
  return names
end

-- Returns how many of the beginnings of `prefix` are in a worker's field `prefixes`.
local function held_depth(held, prefix)
  local depth = 0
  for digest in string.gmatch(prefix, '%S+') do
    if not string.find(held, digest, 1, true) then
      break
    end
    depth = depth + 1
  end
  return depth
end

-- Whether the longest beginning of a prompt is among them.
local function is_held(held, prefix)
  local longest = string.match(prefix, '%S+$')
  return longest and string.find(held, longest, 1, true) ~= nil or false
end

-- Returns the field `prefixes` of a worker with `slots` slots after it has claimed a job with `prefix`. A beginning of
-- this prompt is no longer listed by itself: its cells are those of the longer one.
local function with_newest(held, prefix, slots)
  local entries, most = { prefix }, math.max(1, math.min(slots, MAX_HELD))
  for entry in string.gmatch(held, '[^,]+') do
    if #entries == most then
      break
    elseif string.sub(prefix .. ' ', 1, #entry + 1) ~= entry .. ' ' then
      entries[#entries + 1] = entry
    end
  end
  return table.concat(entries, ',')
end

-- Notes that a worker computes the beginnings of a prompt. A pool with one worker needs no such notes.
local function note_holder(slug, prefix, name)
  if redis.call('ZCARD', k_pool .. slug) < 2 then
    return
  end
  local key = k_prefixes .. slug
  local known = redis.call('HLEN', key)
  if known > MAX_KNOWN then
    redis.call('DEL', key)
    known = 0
  end
  for digest in string.gmatch(prefix, '%S+') do
    local names = { name }
    for _, other in ipairs(holders_in(redis.call('HGET', key, digest))) do
      if other ~= name and #names < MAX_HOLDERS then
        names[#names + 1] = other
      end
    end
    redis.call('HSET', key, digest, table.concat(names, ' '))
  end
  if known == 0 then
    redis.call('EXPIRE', key, KNOWN_S)
  end
end

-- Whether a worker still holds the beginning with this digest, and has a free slot and no ring that it has not read.
-- One that was killed a moment ago reads none, and may get one ring at most.
local function can_take(name, digest)
  local fields = read_fields(k_worker .. name, { 'prefixes', 'free_slots', 'draining', 'beat_ms' })
  return fields.draining ~= '1' and now_ms - number(fields.beat_ms, 0, 0, now_ms) <= LIVE_MS
    and string.find(fields.prefixes or '', digest, 1, true)
    and number(fields.free_slots, 0) > 0 and redis.call('LLEN', k_bell .. name) == 0
end

-- Returns a worker with a free slot that holds the longest beginning of a prompt, of at most 16 workers; or nil.
local function find_holder(slug, prefix)
  if redis.call('EXISTS', k_prefixes .. slug) == 0 then
    return nil
  end
  local digests = {}
  for digest in string.gmatch(prefix, '%S+') do
    table.insert(digests, 1, digest)
  end
  for i = 1, math.min(4, #digests) do
    for _, name in ipairs(holders_in(redis.call('HGET', k_prefixes .. slug, digests[i]))) do
      if can_take(name, digests[i]) then
        return name
      end
    end
  end
end
