-- learning: learns how long the answers of a tenant or a pool usually are, from jobs that ended in an engine.
-- KEYS tenant books
-- USES clock lengths
-- An answer that was cut says only that it would have been longer. So the shares of the lengths are estimated as Kaplan
-- and Meier do (Nonparametric Estimation from Incomplete Observations, 1958): the answers that were not cut stand for
-- those that were cut before them.
-- The hash of a tenant or a pool holds two histograms as text, `<bucket>:<answers> …`, with four buckets for each
-- doubling of the length: `len_hist` of all answers, and `len_cut` of those that were cut. When there are 128 answers,
-- all counts are halved, so that they describe about the last hundred. The mean and the percentiles have fields of
-- their own, so that admission does not have to parse the histograms.
local LENGTHS_HALVED_AT = 128
-- The bucket of 2^50 tokens, which no answer has.
local MAX_BUCKET = 200
-- An answer stands for at most the part 1 / MIN_LENGTHS of all. If it would stand for more because many answers were
-- cut, the rest of the lengths is unknown. It is guessed to be this many times its known minimum, or the pool's usual
-- length if that is more: if lengths follow Zipf's law, half of the answers longer than x are longer than 2x.
local TIMES_KNOWN = 2
-- Sums of shares are not exact.
local TOLERANCE = 1e-9
-- The names of the percentiles, and their shares. The first two say how short answers can be: in the unknown part they
-- are the least possible length and no guess, because a claim gives up jobs by them.
local PERCENTILES = { { 'len_p10', 0.1 }, { 'len_p20', 0.2 }, { 'len_p35', 0.35 }, { 'len_p50', 0.5 },
  { 'len_p90', 0.9 } }
local LEAST_PERCENTILES = 2

-- Returns the bucket for a length in tokens: 0 for an empty answer, otherwise the nearest of the buckets from 1.
local function bucket_of(tokens)
  return tokens < 1 and 0 or math.min(MAX_BUCKET, math.floor(4 * math.log(tokens) / math.log(2) + 0.5) + 1)
end

local function middle_of(bucket)
  return bucket == 0 and 0 or 2 ^ ((bucket - 1) / 4)
end

-- Returns the two histograms of a hash as one list, by length: of each bucket, how many answers were whole and how many
-- were cut. It has a row for `new_bucket` too, which is returned as well.
local function read_histograms(all, cut, new_bucket)
  local by_bucket, rows = { [new_bucket] = { bucket = new_bucket, whole = 0, cut = 0 } }, {}
  for bucket, answers in string.gmatch(all or '', '(%d+):(%d+)') do
    bucket = number(bucket, 0, 0, MAX_BUCKET)
    by_bucket[bucket] = { bucket = bucket, whole = number(answers, 0, 0, LENGTHS_HALVED_AT), cut = 0 }
  end
  for bucket, answers in string.gmatch(cut or '', '(%d+):(%d+)') do
    local row = by_bucket[number(bucket, 0, 0, MAX_BUCKET)]
    if row then
      row.cut, row.whole = number(answers, 0, 0, row.whole), row.whole - number(answers, 0, 0, row.whole)
    end
  end
  for _, row in pairs(by_bucket) do
    rows[#rows + 1] = row
  end
  table.sort(rows, function(a, b) return a.bucket < b.bucket end)
  return rows, by_bucket[new_bucket]
end

-- Returns the number of answers, and the sum of the middles of their buckets.
local function sum_of(rows)
  local n, middles = 0, 0
  for _, row in ipairs(rows) do
    n, middles = n + row.whole + row.cut, middles + (row.whole + row.cut) * middle_of(row.bucket)
  end
  return n, middles
end

-- Whether it is known already that answers are longer than the bucket: no whole answer is as short, and MIN_LENGTHS
-- answers are longer. An answer that was cut there would only take the place of one that says more.
local function says_nothing(rows, bucket)
  local longer = 0
  for _, row in ipairs(rows) do
    if row.bucket <= bucket and row.whole > 0 then
      return false
    elseif row.bucket > bucket then
      longer = longer + row.whole + row.cut
    end
  end
  return longer >= lengths.MIN_LENGTHS
end

-- Estimates the distribution of the lengths. Returns the known percentiles; the mean, for which the unknown part of the
-- answers is as short as possible; that part; and the length that it has at least.
local function estimate(rows, n)
  local percentiles, mean, known, share, at_risk = {}, 0, 0, 1, n
  for _, row in ipairs(rows) do
    local answers = row.whole + row.cut
    if answers > 0 then
      if share * lengths.MIN_LENGTHS > at_risk + TOLERANCE then
        break
      end
      local part = share * row.whole / at_risk
      known, share, at_risk = middle_of(row.bucket), share - part, at_risk - answers
      mean = mean + part * known
      while #percentiles < #PERCENTILES and 1 - share >= PERCENTILES[#percentiles + 1][2] - TOLERANCE do
        percentiles[#percentiles + 1] = known
      end
    end
  end
  share = share > TOLERANCE and share or 0
  return percentiles, mean + share * known, share, known
end

-- Returns the lengths that answers of the pool usually have, as PERCENTILES and then the mean.
local function lengths_in_pool(pool_key)
  local usual, stored = {}, pool_key and read_fields(pool_key, { 'len_n', 'len_mean', 'len_tail', 'len_p10',
    'len_p20', 'len_p35', 'len_p50', 'len_p90' }) or {}
  for i = 1, #PERCENTILES do
    usual[i] = lengths.length_of(stored.len_n, stored[PERCENTILES[i][1]], 0, 0, MAX_NUMBER)
  end
  local mean = lengths.mean_length(stored.len_mean, stored.len_tail, MAX_NUMBER)
  usual[#PERCENTILES + 1] = lengths.length_of(stored.len_n, mean, 0, 0, MAX_NUMBER)
  return usual
end

-- Halves the counts if there are enough answers. Returns the stored form of both histograms, and the number of answers.
local function store_forms_of(rows)
  local n = sum_of(rows)
  local is_halved, all, cut = n >= LENGTHS_HALVED_AT, {}, {}
  for _, row in ipairs(rows) do
    if is_halved then
      row.whole, row.cut = math.floor(row.whole / 2), math.floor(row.cut / 2)
    end
    if row.whole + row.cut > 0 then
      all[#all + 1] = row.bucket .. ':' .. row.whole + row.cut
    end
    if row.cut > 0 then
      cut[#cut + 1] = row.bucket .. ':' .. row.cut
    end
  end
  return table.concat(all, ' '), table.concat(cut, ' '), is_halved and sum_of(rows) or n
end

-- Adds one answer's length to the statistics of a tenant or a pool. The unknown rest of a tenant's lengths is guessed
-- from those of the pool with the hash `pool_key`.
local function learn(key, tokens, is_cut, pool_key)
  local stored = read_fields(key, { 'len_hist', 'len_cut', 'len_sum' })
  local rows, row = read_histograms(stored.len_hist, stored.len_cut, bucket_of(tokens))
  if is_cut and says_nothing(rows, row.bucket) then
    return
  end
  row.whole, row.cut = row.whole + (is_cut and 0 or 1), row.cut + (is_cut and 1 or 0)
  local n_before, middles = sum_of(rows)
  local sum = number(stored.len_sum, 0, 0) + tokens
  -- The lengths in relation to the middles of their buckets.
  local scale = middles > 0 and sum / middles or 1
  local all, cut, n = store_forms_of(rows)
  local percentiles, mean, share, known = estimate(rows, n)
  local to = 0
  if share > 0 then
    local usual = lengths_in_pool(pool_key)
    for i = #percentiles + 1, #PERCENTILES do
      percentiles[i] = i <= LEAST_PERCENTILES and known or math.max(TIMES_KNOWN * known, usual[i])
    end
    known = scale * known
    to = math.max(TIMES_KNOWN * known, usual[#PERCENTILES + 1])
  end
  local written = { 'len_hist', all, 'len_cut', cut, 'len_n', n, 'len_sum', string.format('%.0f', sum * n / n_before),
    'len_mean', string.format('%.0f', scale * mean),
    'len_tail', share > 0 and n >= lengths.MIN_LENGTHS and string.format('%.0f %.0f %.0f', 1000 * share, known, to)
    or '' }
  for i, percentile in ipairs(PERCENTILES) do
    written[#written + 1], written[#written + 2] = percentile[1], string.format('%.0f', percentiles[i] or 0)
  end
  redis.call('HSET', key, unpack(written))
end

local function learn_length(job, tokens, is_cut)
  learn(k_tenant .. job.tenant, tokens, is_cut, k_books .. job.slug)
  -- A pool produces many answers. Once its histogram holds enough of them, adding one answer in eight is sufficient.
  if now_us % 8 == 0 or number(redis.call('HGET', k_books .. job.slug, 'len_n'), 0) < LENGTHS_HALVED_AT / 2 then
    learn(k_books .. job.slug, tokens, is_cut, nil)
  end
end
