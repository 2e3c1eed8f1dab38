-- evict_paused: finds the paused job that returns to its queue if a worker with all it may hold has a newcomer.
-- USES clock slots_in_use partial preempt
-- docs/adr/0088-when-a-running-job-is-paused.md gives the reasons.

-- Whether the owner of a paused job leads a tenant by so much that the job makes room for it: by RISK_FACTOR times the
-- lead for a turn and what a slot computes while the job's tokens are computed again. So they take a fifth of the time
-- at most. Batch jobs make room for all others.
local function makes_room(contest, entry, tenant, sides, is_batch, prefill_tps)
  if entry.job.priority < 0 or is_batch then
    return not is_batch
  end
  local has, wants = preempt.opponents(contest, entry, tenant, sides)
  local again_ms = 1000 * (entry.job.prompt_tokens + entry.generated_tokens) / prefill_tps
  local again_mwt = again_ms * contest.young_mwt / contest.quantum_ms
  return has and has.service > wants.service + preempt.RISK_FACTOR * (contest.lead_mwt + again_mwt) / has.weight
end

-- Whether a paused job may make room for a tenant: one that has no job that runs in the pool. Its batch jobs do not
-- count. `own` are the rates of the worker.
local function may_get_room(contest, tenant, is_batch, own, fingerprint)
  local rows_of = is_batch and slots_in_use.rows_of or slots_in_use.main_rows_of
  return not contest.counts_turns and fingerprint ~= '' and own.prefill_tps > 0
    and rows_of(contest.slug, 'c', tenant) == 0 and rows_of(contest.slug, 'p', tenant) == 0
end

-- Returns the paused job that makes room for a tenant in its turn in a group ('' for none), or nil. A job that has been
-- paused for a quantum has all its ids in the store; one that has no time left for another pause stays.
local function find_displaced(report, contest, tenant, group, is_batch, own, fingerprint)
  local sides, displaced, best = preempt.contenders(contest, tenant, group), nil, nil
  for _, entries in pairs(report.paused) do
    for _, entry in ipairs(entries) do
      local job = entry.job
      if job.cancel == '' and now_ms - job.paused_since_ms >= contest.quantum_ms
        and not preempt.is_urgent(entry, contest.quantum_ms) and makes_room(contest, entry, tenant, sides, is_batch,
        own.prefill_tps) then
        local order = { math.min(0, job.priority), -preempt.sides_of(contest, entry)[1].service, job.paused_since_ms,
          job.id }
        if not displaced or preempt.is_before(order, best) then
          displaced, best = entry, order
        end
      end
    end
  end
  local goes_on = displaced and (displaced.generated_tokens == 0
    or #partial.read_ids(displaced.job.id, displaced.job.claim, fingerprint) > 0)
  return goes_on and displaced.job or nil
end
