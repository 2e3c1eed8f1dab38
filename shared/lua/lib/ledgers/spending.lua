-- spending: counts the costs of jobs in pools with a price, by day, and checks the pools' caps for a day.
-- KEYS spent rq_job
-- USES clock settings usage
-- Amounts are integers in millionths of the operator's currency, prices are amounts for 1,000 tokens. Days are those of
-- UTC by the store's clock. A day's hash has the field `<slug>` for each pool with a price, and `<slug>|<tenant>` for
-- each of its tenants. While a job is inflight, the hash contains the most that the job can cost; when it ends, the
-- cost of its tokens replaces that amount. Both count for the day of its admission.
-- For a pool with a cap, the field `@cells|<slug>` has what was spent in each other cell on that day, as
-- `<cell> <when it was read there, in ms> <amount>`, joined by `;`. spent_elsewhere.lua writes it.

-- The hash of a day is kept for this long, for reports about a month.
local SPENT_TTL_S = 40 * 86400
local DAY_MS = 86400000
local IN_CELLS, IN_CELLS_PATTERN = '@cells|', '(%w+) (%d+) (%d+)'
-- The largest amount that is believed.
local MAX_AMOUNT = 1e15

local function amount_of(prompt_price, answer_price, prompt_tokens, answer_tokens)
  return math.ceil((prompt_price * prompt_tokens + answer_price * answer_tokens) / 1000)
end

-- Adds the prices and the cap in a pool's record to `seen`. A cap that another program has spoiled allows nothing.
local function add_terms(seen, fields)
  seen.prompt_price = settings.integer_setting(fields.policy_prompt_price_micro, 0, 0, MAX_AMOUNT)
  seen.answer_price = settings.integer_setting(fields.policy_answer_price_micro, 0, 0, MAX_AMOUNT)
  seen.day_cap = fields.policy_day_cap_micro and settings.integer_setting(fields.policy_day_cap_micro, 0, 0, MAX_AMOUNT)
end

-- Returns the most that the request can cost in its pool.
local function most_of(asked, seen)
  return amount_of(seen.prompt_price, seen.answer_price, asked.prompt_tokens, asked.max_tokens)
end

-- Checks that the pool's jobs of the current day in all cells, this job included, cost no more than the pool's cap.
local function check_budget(asked, seen)
  if seen.day_cap then
    local most, in_cells = most_of(asked, seen), IN_CELLS .. asked.slug
    local held = read_fields(k_spent .. usage.today(), { asked.slug, in_cells })
    local spent = number(held[asked.slug], 0, 0, MAX_AMOUNT)
    for _, _, amount in string.gmatch(held[in_cells] or '', IN_CELLS_PATTERN) do
      spent = spent + number(amount, 0, 0, MAX_AMOUNT)
    end
    if most > 0 and spent + most > seen.day_cap then
      return { reason = 'budget_exhausted', limit = 'spent_today', value = math.floor(spent),
        max = math.floor(seen.day_cap), base_ms = DAY_MS - now_ms % DAY_MS }
    end
  end
end

-- Adds an amount, which may be negative, to a day's sums of a pool and of its tenant.
local function spend(day, slug, tenant, amount)
  if amount ~= 0 then
    redis.call('HINCRBY', k_spent .. day, slug, whole(amount))
    redis.call('HINCRBY', k_spent .. day, slug .. '|' .. tenant, whole(amount))
    redis.call('EXPIRE', k_spent .. day, SPENT_TTL_S)
  end
end

-- Counts an admitted job as the most that it can cost, and stores the day, this amount and the prices in its record.
local function hold_amount(asked, seen, tenant, id)
  if seen.prompt_price > 0 or seen.answer_price > 0 then
    local most = most_of(asked, seen)
    spend(usage.today(), asked.slug, tenant, most)
    redis.call('HSET', k_rq_job .. id, 'penstock_price', table.concat({ usage.today(), digits(most),
      digits(seen.prompt_price), digits(seen.answer_price) }, ' '))
  end
end

-- Returns the day, the amount that is held and the two prices in a job's field `price`, or nil if it has none.
local function read_price(job)
  local day, held, prompt_price, answer_price = string.match(job.price, '^(%d%d%d%d%-%d%d%-%d%d) (%d+) (%d+) (%d+)$')
  held = number(held, nil, 0, MAX_AMOUNT)
  return held and { day = day, held = held, prompt = number(prompt_price, 0, 0, MAX_AMOUNT),
    answer = number(answer_price, 0, 0, MAX_AMOUNT) }
end

-- Counts the cost of the tokens of one claim of a job.
local function spend_tokens(job, prompt_tokens, answer_tokens)
  local price = read_price(job)
  if price then
    local amount = amount_of(price.prompt, price.answer, prompt_tokens, answer_tokens)
    spend(price.day, job.slug, job.tenant, amount)
    usage.add_usage(job, { cost_micro = amount })
  end
end

-- Takes back the amount held for a job that ends, or that leaves its pool.
local function return_amount(job)
  local price = read_price(job)
  if price then
    spend(price.day, job.slug, job.tenant, -price.held)
  end
end
