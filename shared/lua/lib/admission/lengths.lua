-- lengths: says how long the answers of a tenant or a pool usually are, from what lib/admission/learning.lua keeps.
-- KEYS tenant books
-- The hash of a tenant or a pool has the number of answers from which was learned (`len_n`), their mean (`len_mean`)
-- and percentiles (`len_p10` to `len_p90`). The mean counts answers that were cut as they were. If there are many,
-- `len_tail` says `<share> <from> <to>`: this share of the answers, in thousandths, is longer than `from` tokens,
-- nobody knows by how much; the guess is that whole they have `to` tokens.

-- The mean and the percentiles are used only if they were learned from at least this many answers.
local MIN_LENGTHS = 8
-- The assumed length of an answer about which nothing is known, in tokens.
local USUAL_LENGTH = 128

-- Returns a mean for answers of at most max_tokens from its stored form, or nil.
local function mean_length(mean, tail, max_tokens)
  local share, from, to = string.match(tail or '', '^(%d+) (%d+) (%d+)$')
  local known = number(mean)
  return known and known + number(share, 0, 0, 1000) / 1000
    * math.max(0, math.min(max_tokens, number(to, 0)) - number(from, 0))
end

-- Returns the expected length of an answer in tokens. This is the tenant's figure if the tenant has at least
-- MIN_LENGTHS answers, otherwise the pool's figure if the pool has that many, otherwise 128. The result is between 1
-- and max_tokens. If the job has several candidates, which share max_tokens, it is the length of all together.
local function length_of(tenant_n, tenant_tokens, pool_n, pool_tokens, max_tokens, candidates)
  candidates = candidates or 1
  max_tokens = max_tokens / candidates
  local expected = math.min(max_tokens, USUAL_LENGTH)
  if number(tenant_n, 0) >= MIN_LENGTHS then
    expected = number(tenant_tokens, expected)
  elseif number(pool_n, 0) >= MIN_LENGTHS then
    expected = number(pool_tokens, expected)
  end
  return candidates * math.min(max_tokens, math.max(1, expected))
end

-- Returns the mean length of the tenant's answers of at most max_tokens, by the same rule.
local function usual_length(tenant, slug, max_tokens)
  local of_tenant = read_fields(k_tenant .. tenant, { 'len_n', 'len_mean', 'len_tail' })
  local of_pool = read_fields(k_books .. slug, { 'len_n', 'len_mean', 'len_tail' })
  return length_of(of_tenant.len_n, mean_length(of_tenant.len_mean, of_tenant.len_tail, max_tokens), of_pool.len_n,
    mean_length(of_pool.len_mean, of_pool.len_tail, max_tokens), max_tokens)
end
