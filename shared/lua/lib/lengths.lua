-- lengths: learns how long the answers of a tenant or a pool usually are, from the jobs that succeeded.
-- KEYS
-- The hash of a tenant or a pool holds a histogram as text, `<bucket>:<answers> …`, with four buckets for each doubling
-- of the length. When it holds 128 answers, all counts are halved, so that it describes about the last hundred answers.
-- The mean and the percentiles have fields of their own, so that admission does not have to parse the histogram.
local LENGTHS_HALVED_AT = 128
-- The bucket of 2^50 tokens, which no answer has.
local MAX_BUCKET = 200
-- The mean and the percentiles are used only if the histogram holds at least this many answers.
local MIN_LENGTHS = 8

-- Returns the bucket for a length in tokens: 0 for an empty answer, otherwise the nearest of the buckets from 1.
local function bucket_of(tokens)
  return tokens < 1 and 0 or math.floor(4 * math.log(tokens) / math.log(2) + 0.5) + 1
end

-- Returns the length in tokens at the middle of a bucket.
local function middle_of(bucket)
  return bucket == 0 and 0 or 2 ^ ((bucket - 1) / 4)
end

-- Adds one answer's length to the histogram of a tenant's or a pool's hash.
local function learn(key, tokens)
  local stored = redis.call('HMGET', key, 'len_hist', 'len_n', 'len_sum')
  local counts, n, sum = {}, number(stored[2], 0) + 1, number(stored[3], 0) + tokens
  local new_bucket, inserted = bucket_of(tokens), false
  for bucket, answers in string.gmatch(stored[1] or '', '(%d+):(%d+)') do
    local old_bucket, answers_in_bucket = number(bucket, 0, 0, MAX_BUCKET), number(answers, 0, 0, LENGTHS_HALVED_AT)
    if old_bucket >= new_bucket and not inserted then
      inserted = true
      counts[#counts + 1] = { new_bucket, old_bucket == new_bucket and answers_in_bucket + 1 or 1 }
    end
    if old_bucket ~= new_bucket then
      counts[#counts + 1] = { old_bucket, answers_in_bucket }
    end
  end
  if not inserted then
    counts[#counts + 1] = { new_bucket, 1 }
  end
  if n >= LENGTHS_HALVED_AT then
    local n_before = n
    n = 0
    for i = 1, #counts do
      counts[i][2] = math.floor(counts[i][2] / 2)
      n = n + counts[i][2]
    end
    sum = sum * n / n_before
  end
  local entries, targets, cumulative, percentiles = {}, { n * 0.1, n * 0.2, n * 0.35, n * 0.5, n * 0.9 }, 0, {}
  for i = 1, #counts do
    local bucket, answers = counts[i][1], counts[i][2]
    if answers > 0 then
      entries[#entries + 1] = bucket .. ':' .. answers
      cumulative = cumulative + answers
      while percentiles[5] == nil and cumulative >= targets[#percentiles + 1] do
        percentiles[#percentiles + 1] = string.format('%.0f', middle_of(bucket))
      end
    end
  end
  redis.call('HSET', key, 'len_hist', table.concat(entries, ' '), 'len_n', n, 'len_sum', string.format('%.0f', sum),
    'len_mean', string.format('%.0f', sum / math.max(1, n)), 'len_p10', percentiles[1] or 0,
    'len_p20', percentiles[2] or 0, 'len_p35', percentiles[3] or 0, 'len_p50', percentiles[4] or 0,
    'len_p90', percentiles[5] or 0)
end

-- Returns the expected length of an answer in tokens. This is the tenant's figure if the tenant has at least
-- MIN_LENGTHS answers, otherwise the pool's figure if the pool has that many, otherwise 128. The result is between 1
-- and max_tokens.
local function length_of(tenant_n, tenant_tokens, pool_n, pool_tokens, max_tokens)
  local expected = math.min(max_tokens, 128)
  if number(tenant_n, 0) >= MIN_LENGTHS then
    expected = number(tenant_tokens, expected)
  elseif number(pool_n, 0) >= MIN_LENGTHS then
    expected = number(pool_tokens, expected)
  end
  return math.min(max_tokens, math.max(1, expected))
end
