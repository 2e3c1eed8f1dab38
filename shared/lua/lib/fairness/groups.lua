-- groups: the figures of the owner that admission counts: a tenant or, for one with a group, the group.
-- KEYS tenant
-- USES settings pool_record priority budget

-- Adds to `seen` an owner's figures in the pool, from the fields of its record. Returns the weight that the pool's sum
-- contains for the owner, or nil if it has no jobs there that count. With another weight than that, its share could
-- exceed the whole pool.
local function count_owner(asked, seen, fields)
  local slug, is_batch = asked.slug, asked.is_batch
  local jobs, batch_jobs = number(fields['n|' .. slug], 0, 0), number(fields['bn|' .. slug], 0, 0)
  seen.waiting_here = priority.counted_work(is_batch, jobs, batch_jobs)
  seen.tenant_mwt = priority.counted_work(is_batch, number(fields['b|' .. slug], 0, 0), number(fields['bb|' .. slug], 0,
    0))
  local counted_milli = (is_batch or batch_jobs == 0 or jobs > batch_jobs) and number(fields['w|' .. slug], nil, 1)
  seen.weight_milli = counted_milli or pool_record.weight_in(fields.policy_weight_milli)
  return counted_milli
end

-- Replaces the tenant's figures by those of its group, wherever admission counts tenants: weights, shares, kept places,
-- the tenant's first job and retry hints. The tenant's own bounds still hold, and `member` has its own figures. Returns
-- as count_owner does.
local function look_at_group(asked, seen, group, max_waiting, max_waiting_tokens)
  local slug = asked.slug
  local fields = read_fields(k_tenant .. group, { 'waiting', 'waiting_tokens', 'policy_max_waiting',
    'policy_max_waiting_tokens', 'policy_weight_milli', 'n|' .. slug, 'b|' .. slug, 'w|' .. slug, 'bn|' .. slug,
    'bb|' .. slug, 'budget', 'budget_elsewhere', 'policy_tokens_per_day', 'policy_tokens_per_month',
    'policy_prompt_weight_milli', 'policy_answer_weight_milli' })
  seen.unit = group
  seen.member = { waiting_here = seen.waiting_here, tenant_mwt = seen.tenant_mwt, weight_milli = seen.weight_milli }
  seen.group = { waiting = number(fields.waiting, 0, 0), waiting_tokens = number(fields.waiting_tokens, 0, 0),
    max_waiting = settings.integer_setting(fields.policy_max_waiting, nil, 1) or max_waiting,
    max_waiting_tokens = settings.integer_setting(fields.policy_max_waiting_tokens, nil, 1) or max_waiting_tokens }
  seen.budgets[2] = budget.open_budget(group, fields)
  return count_owner(asked, seen, fields)
end
