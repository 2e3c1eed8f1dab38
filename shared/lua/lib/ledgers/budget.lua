-- budget: counts the tokens of each tenant and group by day and month, and checks them against their budgets.
-- KEYS tenant rq_job inflight
-- KEEPS 3
-- USES clock settings usage rq
-- The field `budget` of an owner's record is `<day> <tokens of the day> <tokens of its month> <reserved>`. The tokens
-- are those that clients were told when their jobs ended, on the day of the end (UTC). Reserved is the most that the
-- inflight jobs can add to them. Prompt and answer tokens count by the weights of the owner's policy, in thousandths. A
-- job keeps the weights of its admission: its field `penstock_budget` has `<owner> <weight of a prompt token> <weight
-- of an answer token> <reserved>` for its tenant and, if that has a group, for the group.
-- An owner may have jobs in other cells too. For each of them, the field `budget_elsewhere` has
-- `<cell> <when it was read there, in ms> <the field budget there>`, joined by `;`. spent_elsewhere.lua writes it.

local HOLD_PATTERN = '(@?[%w_-]+) (%d+) (%d+) (%d+)'
local ELSEWHERE_PATTERN = '(%w+) (%d+) (%d%d%d%d%-%d%d%-%d%d %d+ %d+ %d+)'
-- The largest weight of a token, in thousandths.
local MAX_TOKEN_MILLI = 1000000
-- The hint of a request that exceeds a budget: the longest one. Its client is told not to retry.
local BUDGET_HINT_MS = 60000
local A_DAY_MS = 86400000

local function weighted_tokens(hold, prompt_tokens, answer_tokens)
  return math.ceil((hold.prompt_milli * prompt_tokens + hold.answer_milli * answer_tokens) / 1000)
end

-- Returns the tokens counted in the current day and month, and the reserved ones.
local function read_budget(stored)
  local date, day, month, reserved = string.match(stored or '', '^(%d%d%d%d%-%d%d%-%d%d) (%d+) (%d+) (%d+)$')
  local is_this_month = date and string.sub(date, 1, 7) == string.sub(usage.today(), 1, 7)
  return { day = date == usage.today() and number(day, 0, 0) or 0, month = is_this_month and number(month, 0, 0) or 0,
    reserved = number(reserved, 0, 0) }
end

-- Whether what was reserved in another cell when it was read can still be reserved there: no job lives for longer.
local function may_be_reserved(read_ms)
  return now_ms - number(read_ms, 0, 0) < A_DAY_MS
end

-- Adds what the owner has used in other cells.
local function add_elsewhere(budget, stored)
  for _, read_ms, counts in string.gmatch(stored, ELSEWHERE_PATTERN) do
    local there = read_budget(counts)
    budget.day, budget.month = budget.day + there.day, budget.month + there.month
    if may_be_reserved(read_ms) then
      budget.reserved = budget.reserved + there.reserved
    end
  end
end

-- Returns the counts of an owner, those of other cells included, with its budgets and weights. `fields` are those of
-- its record.
local function open_budget(owner, fields)
  local budget = read_budget(fields.budget)
  if fields.budget_elsewhere then
    add_elsewhere(budget, fields.budget_elsewhere)
  end
  budget.owner = owner
  budget.most = { day = settings.integer_setting(fields.policy_tokens_per_day, nil, 1),
    month = settings.integer_setting(fields.policy_tokens_per_month, nil, 1) }
  budget.prompt_milli = settings.integer_setting(fields.policy_prompt_weight_milli, 1000, 0, MAX_TOKEN_MILLI)
  budget.answer_milli = settings.integer_setting(fields.policy_answer_weight_milli, 1000, 0, MAX_TOKEN_MILLI)
  return budget
end

local function period_ends_ms(period)
  local ends_ms = now_ms - now_ms % A_DAY_MS + A_DAY_MS
  while period == 'month' and string.sub(rq.iso(ends_ms), 1, 7) == string.sub(usage.today(), 1, 7) do
    ends_ms = ends_ms + A_DAY_MS
  end
  return ends_ms
end

-- Whether `needed` further tokens would exceed the budget `most` (nil without a budget) if `used` tokens are used.
local function is_exceeded(most, used, needed)
  return most and needed > 0 and used + needed > most
end

-- Checks that the tenant's tokens stay within its budgets with this job, and those of its group within the group's. If
-- several are exhausted, the refusal names one that begins anew last. It first refuses a job that could use more than a
-- whole budget: that refusal has the tokens that the job could use, and no time at which the budget begins anew,
-- because the job would not fit then either.
local function check_token_budgets(asked, seen, verdict)
  for _, of_all in ipairs({ true, false }) do
    for _, period in ipairs({ 'month', 'day' }) do
      for _, budget in ipairs(seen.budgets) do
        local most, used = budget.most[period], of_all and 0 or budget[period] + budget.reserved
        local needed = most and weighted_tokens(budget, asked.prompt_tokens, asked.max_tokens)
        if is_exceeded(most, used, needed) then
          verdict.hint_ms, verdict.resets_ms = BUDGET_HINT_MS, not of_all and period_ends_ms(period) or nil
          local owner = budget.owner == asked.tenant and 'tenant' or 'group'
          return { reason = 'budget_exhausted', limit = owner .. '_tokens_per_' .. period,
            value = math.floor(of_all and needed or used), max = math.floor(most), base_ms = BUDGET_HINT_MS }
        end
      end
    end
  end
end

-- Adds to an owner's counted and reserved tokens. An end does not create the record of an owner again if another
-- program has deleted it.
local function add_to_budget(owner, tokens, reserved)
  local stored = redis.call('HGET', k_tenant .. owner, 'budget')
  if stored or reserved > 0 then
    local budget = read_budget(stored)
    redis.call('HSET', k_tenant .. owner, 'budget', table.concat({ usage.today(), digits(budget.day + tokens),
      digits(budget.month + tokens), digits(math.max(0, budget.reserved + reserved)) }, ' '))
  end
end

-- Returns the reservation of a job for each of its owners. Jobs of versions without budgets have no reservation.
local function holds_of(job)
  local holds = {}
  for owner, prompt_milli, answer_milli, reserved in string.gmatch(job.budget, HOLD_PATTERN) do
    if owner == job.tenant or string.sub(owner, 1, 1) == '@' then
      holds[#holds + 1] = { owner = owner, prompt_milli = number(prompt_milli, 1000, 0, MAX_TOKEN_MILLI),
        answer_milli = number(answer_milli, 1000, 0, MAX_TOKEN_MILLI), reserved = number(reserved, 0, 0) }
    end
  end
  return holds
end

local function keep_holds(id, holds)
  local parts = {}
  for i, hold in ipairs(holds) do
    local numbers = { digits(hold.prompt_milli), digits(hold.answer_milli), digits(hold.reserved) }
    parts[i] = hold.owner .. ' ' .. table.concat(numbers, ' ')
  end
  redis.call('HSET', k_rq_job .. id, 'penstock_budget', table.concat(parts, ' '))
end

local function reserve_tokens(asked, seen, id)
  local holds = {}
  for i, budget in ipairs(seen.budgets) do
    local reserved = weighted_tokens(budget, asked.prompt_tokens, asked.max_tokens)
    add_to_budget(budget.owner, 0, reserved)
    holds[i] = { owner = budget.owner, prompt_milli = budget.prompt_milli, answer_milli = budget.answer_milli,
      reserved = reserved }
  end
  keep_holds(id, holds)
end

-- Counts the tokens of a job that ends, and gives back its reservations.
local function settle_tokens(job, prompt_tokens, answer_tokens)
  local holds = holds_of(job)
  if #holds == 0 then
    holds[1] = { owner = job.tenant, prompt_milli = 1000, answer_milli = 1000, reserved = 0 }
  end
  for _, hold in ipairs(holds) do
    add_to_budget(hold.owner, weighted_tokens(hold, prompt_tokens, answer_tokens), -hold.reserved)
  end
end

-- Whether a job that moves to another pool, where it has these numbers of tokens, stays within the budgets. A job that
-- needs no more there than its reservation may move even if a budget was lowered meanwhile.
local function may_use(job, prompt_tokens, max_tokens)
  for _, hold in ipairs(holds_of(job)) do
    local needed = weighted_tokens(hold, prompt_tokens, max_tokens)
    local budget = open_budget(hold.owner, read_fields(k_tenant .. hold.owner, { 'budget', 'budget_elsewhere',
      'policy_tokens_per_day', 'policy_tokens_per_month' }))
    budget.reserved = budget.reserved - hold.reserved
    for _, period in ipairs({ 'day', 'month' }) do
      if needed > hold.reserved and is_exceeded(budget.most[period], budget[period] + budget.reserved, needed) then
        return false
      end
    end
  end
  return true
end

local function reserve_anew(job, prompt_tokens, max_tokens)
  local holds = holds_of(job)
  for _, hold in ipairs(holds) do
    local reserved = weighted_tokens(hold, prompt_tokens, max_tokens)
    add_to_budget(hold.owner, 0, reserved - hold.reserved)
    hold.reserved = reserved
  end
  if #holds > 0 then
    keep_holds(job.id, holds)
  end
end

local function leave_out_hold(seen, superseded)
  for _, hold in ipairs(holds_of(superseded)) do
    for _, budget in ipairs(seen.budgets) do
      if budget.owner == hold.owner then
        budget.reserved = math.max(0, budget.reserved - hold.reserved)
      end
    end
  end
end

-- The most inflight jobs that a recount examines. With more of them, it waits for a quieter time.
local MAX_RECOUNTED = 1024

-- Recomputes the reserved tokens of a tenant, its group and the groups of other inflight jobs from the inflight jobs.
-- Another program may have deleted jobs, or a version without budgets ended some. Returns the number of repairs.
local function recount_reserved(tenant, group)
  local ids, sums, repairs = redis.call('ZRANGE', k_inflight, 0, MAX_RECOUNTED), { [tenant] = 0 }, 0
  if #ids > MAX_RECOUNTED then
    return 0
  end
  if group ~= '' then
    sums[group] = 0
  end
  for i = 1, #ids do
    local fields = peek_fields(k_rq_job .. ids[i], { 'penstock_state', 'penstock_tenant', 'penstock_budget' })
    local is_inflight = fields.penstock_state == 'queued' or fields.penstock_state == 'running'
    for _, hold in ipairs(is_inflight and holds_of({ tenant = fields.penstock_tenant, budget = fields.penstock_budget
      or '' }) or {}) do
      if hold.owner == tenant or hold.owner ~= fields.penstock_tenant then
        sums[hold.owner] = (sums[hold.owner] or 0) + hold.reserved
      end
    end
  end
  for owner, reserved in pairs(sums) do
    local before = read_budget(redis.call('HGET', k_tenant .. owner, 'budget')).reserved
    if before ~= reserved then
      add_to_budget(owner, 0, reserved - before)
      repairs = repairs + 1
    end
  end
  return repairs
end
