-- assess: runs the checks of admission for a request in one pool.
-- KEYS rq_job
-- USES facts checks tier tenant_bytes return_room reservation budget

-- Subtracts the superseded job from the figures of the request, so that a tenant whose queue is full can still replace
-- a job.
local function leave_out(asked, seen, superseded)
  seen.inflight, seen.waiting = seen.inflight - 1, seen.waiting - 1
  seen.replaced_slug = superseded.slug
  seen.waiting_tokens = seen.waiting_tokens - superseded.prompt_tokens - superseded.max_tokens
  if seen.group then
    seen.group.waiting = seen.group.waiting - 1
    seen.group.waiting_tokens = seen.group.waiting_tokens - superseded.prompt_tokens - superseded.max_tokens
  end
  if seen.key and superseded.key_id == seen.key.id then
    seen.key.waiting = seen.key.waiting - 1
  end
  budget.leave_out_hold(seen, superseded)
  -- Only the record of the superseded job stays.
  local bytes = read_fields(k_rq_job .. superseded.id, { 'penstock_bytes', 'penstock_fixed_bytes' })
  seen.live_bytes = math.max(0, seen.live_bytes - tenant_bytes.kept_number(bytes.penstock_bytes))
  seen.ended_bytes = seen.ended_bytes + tenant_bytes.kept_number(bytes.penstock_fixed_bytes)
  if superseded.slug == asked.slug then
    seen.pool_inflight = seen.pool_inflight - 1
    seen.main_mwt = seen.main_mwt - (superseded.priority >= 0 and superseded.cost_mwt or 0)
  end
  if superseded.slug == asked.slug and (asked.is_batch or superseded.priority >= 0) then
    seen.waiting_here, seen.tenant_mwt = seen.waiting_here - 1, seen.tenant_mwt - superseded.cost_mwt
    seen.pool_mwt = seen.pool_mwt - superseded.cost_mwt
    if seen.member then
      seen.member.waiting_here = seen.member.waiting_here - 1
      seen.member.tenant_mwt = seen.member.tenant_mwt - superseded.cost_mwt
    end
    seen.replaced_mwt = superseded.cost_mwt
  end
end

-- Looks at the request's pool and runs the checks. `superseded` is the tenant's job that the request replaces, or nil.
-- `ticket_id` and `ticket_ms` name the reservation of the client's return ticket, and `return_id` that of a request
-- that the client repeats ('' for none). Returns nil or the refusal, as checks.first_refusal does.
local function refusal_in_pool(request, superseded, ticket_id, ticket_ms, return_id)
  local asked, seen, verdict = request.asked, facts.look(request.asked), request.verdict
  request.seen = seen
  if seen.has_tier then
    verdict.tier = tier.move_tier(asked, seen)
  elseif seen.degradation_on then
    tier.end_unchecked_tier(asked.slug)
  end
  if superseded and superseded.state == 'queued' then
    leave_out(asked, seen, superseded)
  end
  if ticket_id ~= '' then
    reservation.find_reservation(asked, seen, ticket_id, ticket_ms)
  end
  -- A client may repeat a request with the ticket that is in its body, and was used up by the request before.
  if not seen.reservation and return_id ~= '' then
    reservation.find_reservation(asked, seen, return_id, 0)
  end
  return_room.look_at_room(asked, seen)
  local refusal = checks.first_refusal(asked, seen, verdict)
  return_room.note_room(asked, seen)
  return refusal
end
