-- assess: runs the checks of admission for a request in one pool.
-- KEYS rq_job
-- USES verdict tier tenant_bytes return_room reservation budget

-- Subtracts the superseded job from the figures of the request, so that a tenant whose queue is full can still replace
-- a job.
local function leave_out(request, superseded)
  request.inflight, request.waiting = request.inflight - 1, request.waiting - 1
  request.replaced_slug = superseded.slug
  request.waiting_tokens = request.waiting_tokens - superseded.prompt_tokens - superseded.max_tokens
  if request.group then
    request.group.waiting = request.group.waiting - 1
    request.group.waiting_tokens = request.group.waiting_tokens - superseded.prompt_tokens - superseded.max_tokens
  end
  if request.key and superseded.key_id == request.key.id then
    request.key.waiting = request.key.waiting - 1
  end
  budget.leave_out_hold(request, superseded)
  -- Only the record of the superseded job stays.
  local bytes = read_fields(k_rq_job .. superseded.id, { 'penstock_bytes', 'penstock_fixed_bytes' })
  request.live_bytes = math.max(0, request.live_bytes - tenant_bytes.kept_number(bytes.penstock_bytes))
  request.ended_bytes = request.ended_bytes + tenant_bytes.kept_number(bytes.penstock_fixed_bytes)
  if superseded.slug == request.slug then
    request.pool_inflight = request.pool_inflight - 1
    request.main_mwt = request.main_mwt - (superseded.priority >= 0 and superseded.cost_mwt or 0)
  end
  if superseded.slug == request.slug and (request.is_batch or superseded.priority >= 0) then
    request.waiting_here, request.tenant_mwt = request.waiting_here - 1, request.tenant_mwt - superseded.cost_mwt
    request.pool_mwt = request.pool_mwt - superseded.cost_mwt
    if request.member then
      request.member.waiting_here = request.member.waiting_here - 1
      request.member.tenant_mwt = request.member.tenant_mwt - superseded.cost_mwt
    end
    request.replaced_mwt = superseded.cost_mwt
  end
end

-- Looks at the request's pool and runs the checks. `superseded` is the tenant's job that the request replaces, or nil.
-- `ticket_id` and `ticket_ms` name the reservation of the client's return ticket, and `return_id` that of a request
-- that the client repeats ('' for none). Returns nil or the refusal, as verdict.first_refusal does.
local function refusal_in_pool(request, superseded, ticket_id, ticket_ms, return_id)
  verdict.look(request)
  if request.has_tier then
    request.tier = tier.move_tier(request)
  elseif request.degradation_on then
    tier.end_unchecked_tier(request.slug)
  end
  if superseded and superseded.state == 'queued' then
    leave_out(request, superseded)
  end
  if ticket_id ~= '' then
    reservation.find_reservation(request, ticket_id, ticket_ms)
  end
  -- A client may repeat a request with the ticket that is in its body, and was used up by the request before.
  if not request.reservation and return_id ~= '' then
    reservation.find_reservation(request, return_id, 0)
  end
  return_room.look_at_room(request)
  local refusal = verdict.first_refusal(request)
  return_room.note_room(request)
  return refusal
end
