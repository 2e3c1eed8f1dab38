-- groups: makes a group count as one tenant in admission.
-- KEYS tenant
-- USES settings pool_record priority budget

-- Replaces the tenant's figures in the request by those of its group, wherever admission counts tenants: weights,
-- shares, kept places, the tenant's first job and retry hints. The tenant's own bounds still hold, and `member` has the
-- tenant's own figures. Returns the weight that the pool's sum contains for the group, or nil if the group has no jobs
-- queued for the pool.
local function look_at_group(request, group, max_waiting, max_waiting_tokens)
  local fields = read_fields(k_tenant .. group, { 'waiting', 'waiting_tokens', 'policy_max_waiting',
    'policy_max_waiting_tokens', 'policy_weight_milli', 'n|' .. request.slug, 'b|' .. request.slug,
    'w|' .. request.slug, 'bn|' .. request.slug, 'bb|' .. request.slug, 'budget', 'policy_tokens_per_day',
    'policy_tokens_per_month', 'policy_prompt_weight_milli', 'policy_answer_weight_milli' })
  request.unit = group
  request.member = { waiting_here = request.waiting_here, tenant_mwt = request.tenant_mwt,
    weight_milli = request.weight_milli }
  request.group = { waiting = number(fields.waiting, 0, 0), waiting_tokens = number(fields.waiting_tokens, 0, 0),
    max_waiting = settings.integer_setting(fields.policy_max_waiting, nil, 1) or max_waiting,
    max_waiting_tokens = settings.integer_setting(fields.policy_max_waiting_tokens, nil, 1) or max_waiting_tokens }
  request.budgets[2] = budget.open_budget(group, fields)
  local jobs, batch_jobs = number(fields['n|' .. request.slug], 0, 0), number(fields['bn|' .. request.slug], 0, 0)
  request.waiting_here = priority.counted_work(request.is_batch, jobs, batch_jobs)
  request.tenant_mwt = priority.counted_work(request.is_batch, number(fields['b|' .. request.slug], 0, 0),
    number(fields['bb|' .. request.slug], 0, 0))
  local counted_milli = (request.is_batch or batch_jobs == 0 or jobs > batch_jobs) and number(fields['w|'
    .. request.slug], nil, 1)
  request.weight_milli = counted_milli or pool_record.weight_in(fields.policy_weight_milli)
  return counted_milli
end
