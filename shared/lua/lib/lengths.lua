-- lengths: learns how long answers become, of a tenant and of a pool, from those that ended.
-- KEYS
-- A histogram of quarter octaves as text, `<bucket>:<answers> …`, halved at 128 answers, so that about the last
-- hundred count; beside it the figures that admission reads, so that it need not read the histogram.
local LENGTHS_KEPT = 128
-- So many answers must have ended before a figure is believed.
local LENGTHS_BELIEVED = 8

local function bucket_of(tokens)
  return tokens < 1 and 0 or math.floor(4 * math.log(tokens) / math.log(2) + 0.5) + 1
end

local function middle_of(bucket)
  return bucket == 0 and 0 or 2 ^ ((bucket - 1) / 4)
end

local function learn(key, tokens)
  local held = redis.call('HMGET', key, 'len_hist', 'len_n', 'len_sum')
  local counts, n, sum = {}, (tonumber(held[2] or 0) or 0) + 1, (tonumber(held[3] or 0) or 0) + tokens
  local mine, seen = bucket_of(tokens), false
  for bucket, answers in string.gmatch(held[1] or '', '(%d+):(%d+)') do
    local b, a = tonumber(bucket), tonumber(answers)
    if b >= mine and not seen then
      seen = true
      counts[#counts + 1] = { mine, b == mine and a + 1 or 1 }
    end
    if b ~= mine then
      counts[#counts + 1] = { b, a }
    end
  end
  if not seen then
    counts[#counts + 1] = { mine, 1 }
  end
  if n >= LENGTHS_KEPT then
    local before = n
    n = 0
    for i = 1, #counts do
      counts[i][2] = math.floor(counts[i][2] / 2)
      n = n + counts[i][2]
    end
    sum = sum * n / before
  end
  local words, wanted, passed, found = {}, { n * 0.2, n * 0.35, n * 0.5 }, 0, {}
  for i = 1, #counts do
    local bucket, answers = counts[i][1], counts[i][2]
    if answers > 0 then
      words[#words + 1] = bucket .. ':' .. answers
      passed = passed + answers
      while found[3] == nil and passed >= wanted[#found + 1] do
        found[#found + 1] = string.format('%.0f', middle_of(bucket))
      end
    end
  end
  redis.call('HSET', key, 'len_hist', table.concat(words, ' '), 'len_n', n, 'len_sum', string.format('%.0f', sum),
    'len_mean', string.format('%.0f', sum / math.max(1, n)), 'len_p20', found[1] or 0, 'len_p35', found[2] or 0,
    'len_p50', found[3] or 0)
end

-- The first believed of: the tenant's figure, the pool's, what is asked for but at most 128; never more than asked for.
local function length_of(own_n, own, pool_n, pool, max_tokens)
  local expected = math.min(max_tokens, 128)
  if (tonumber(own_n or 0) or 0) >= LENGTHS_BELIEVED then
    expected = tonumber(own) or expected
  elseif (tonumber(pool_n or 0) or 0) >= LENGTHS_BELIEVED then
    expected = tonumber(pool) or expected
  end
  return math.min(max_tokens, math.max(1, expected))
end
