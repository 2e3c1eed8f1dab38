-- evict_paused: finds the paused job that returns to its queue if a worker with all it may hold has a newcomer.
-- USES clock slots_in_use partial preempt
-- docs/adr/0088-when-a-running-job-is-paused.md gives the reasons.

-- Whether the owner of a paused job leads a tenant by so much that the job makes room for it: by RISK_FACTOR times the
-- lead for a turn and what a slot computes while the job's tokens are computed again. So they take a fifth of the time
-- at most. Batch jobs make room for all others. `has` and `wants` are the contenders for whom the two jobs count.
local function makes_room(seen, entry, has, tenant, wants, is_batch, prefill_tps)
  if entry.job.priority < 0 or is_batch then
    return not is_batch
  end
  local leader, other = preempt.opponents(entry.job, has, tenant, wants)
  local again_ms = 1000 * (entry.job.prompt_tokens + entry.generated_tokens) / prefill_tps
  local again_mwt = again_ms * seen.young_mwt / seen.quantum_ms
  return leader
    and leader.service > other.service + preempt.RISK_FACTOR * (seen.lead_mwt + again_mwt) / leader.weight
end

-- Whether a paused job may make room for a tenant: one that has no job that runs in the pool. Its batch jobs do not
-- count. `own` are the rates of the worker.
local function may_get_room(seen, tenant, is_batch, own, fingerprint)
  local count_rows_of = is_batch and slots_in_use.rows_of or slots_in_use.main_rows_of
  return not seen.counts_turns and fingerprint ~= '' and own.prefill_tps > 0
    and count_rows_of(seen.slug, 'c', tenant) == 0 and count_rows_of(seen.slug, 'p', tenant) == 0
end

-- Returns the paused job that makes room for a tenant in its turn in a group ('' for none), or nil. A job that has been
-- paused for a quantum has all its ids in the store; one that has no time left for another pause stays.
local function find_displaced(report, seen, decided, tenant, group, is_batch, own, fingerprint)
  local wants, displaced, best = preempt.contenders(seen, decided, tenant, group), nil, nil
  for _, entries in pairs(report.paused) do
    for _, entry in ipairs(entries) do
      local job = entry.job
      if preempt.is_paused(entry) and job.cancel == '' and now_ms - job.paused_since_ms >= seen.quantum_ms
        and not preempt.is_urgent(entry, seen.quantum_ms) then
        local has = preempt.contenders(seen, decided, job.tenant, job.group)
        local order = { math.min(0, job.priority), -has[1].service, job.paused_since_ms, job.id }
        if makes_room(seen, entry, has, tenant, wants, is_batch, own.prefill_tps)
          and (not displaced or preempt.is_before(order, best)) then
          displaced, best = entry, order
        end
      end
    end
  end
  local goes_on = displaced and (displaced.generated_tokens == 0
    or #partial.read_ids(displaced.job.id, displaced.job.claim, fingerprint) > 0)
  return goes_on and displaced.job or nil
end
