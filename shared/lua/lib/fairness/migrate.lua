-- migrate: finds the paused job that another worker of the pool could resume sooner than its own worker.
-- KEYS pool worker books
-- USES clock job_record partial fastest_worker preempt
-- A job that leaves its worker goes back to its queue with the ids of its tokens, and the worker that takes it up
-- computes prompt and tokens again. That worker has nothing else to do, so the prefill delays only the job itself.

-- A job leaves if its own worker has no slot for it in this many times the duration of the prefill: both are estimates.
local WORTH_FACTOR = 2
local MAX_WORKERS = 16

-- Whether another live worker with the same model has a free slot, enough free cells for the job, and computes its
-- `tokens` in less than `most_ms`. One that is much slower than this worker, with the rates `own`, would compute the
-- rest of the answer too late, or leave the job to a faster worker again.
local function is_idle_elsewhere(slug, own_name, own, fingerprint, cells, tokens, most_ms)
  for _, name in ipairs(redis.call('ZREVRANGE', k_pool .. slug, 0, MAX_WORKERS)) do
    local fields = read_fields(k_worker .. name, { 'slots', 'slots_busy', 'cells_free', 'draining', 'fingerprint',
      'beat_ms', 'prefill_tps', 'tpot_ms' })
    local other = { prefill_tps = number(fields.prefill_tps, 0), tpot_ms = number(fields.tpot_ms, 0) }
    if name ~= own_name and fields.draining ~= '1' and fields.fingerprint == fingerprint
      and number(fields.beat_ms, 0) > now_ms - LIVE_MS and number(fields.cells_free, 0) >= cells
      and number(fields.slots, 0) > number(fields.slots_busy, 0)
      and other.prefill_tps > 0 and 1000 * tokens / other.prefill_tps < most_ms
      and not fastest_worker.if_much_faster(own, other) then
      return true
    end
  end
  return false
end

local function soonest_end_ms(decided)
  local soonest_ms
  for _, entry in ipairs(decided.computing) do
    if not preempt.is_paused(entry) then
      soonest_ms = math.min(soonest_ms or entry.left_ms, entry.left_ms)
    end
  end
  return soonest_ms or 0
end

-- Returns the job that leaves the worker, of those that have been paused for a quantum or longer the one with the
-- longest pause, or nil. After a quantum the store has its last text and all ids. No job leaves while others are queued
-- in the pool, because they would take the free slot.
local function find_leaver(report, seen, decided, own_name, own, fingerprint)
  local leaver
  for _, entries in pairs(report.paused) do
    for _, entry in ipairs(entries) do
      local job = entry.job
      if preempt.is_paused(entry) and (not leaver or job.paused_since_ms < leaver.paused_since_ms) then
        leaver = job
      end
    end
  end
  if not leaver or leaver.cancel ~= '' or leaver.deadline_ms <= now_ms or fingerprint == ''
    or now_ms - leaver.paused_since_ms < seen.quantum_ms
    or number(redis.call('HGET', k_books .. seen.slug, 'waiting'), 0) > 0 then
    return nil
  end
  local kept = #partial.read_ids(leaver.id, leaver.claim, fingerprint) / 4
  return kept > 0 and is_idle_elsewhere(seen.slug, own_name, own, fingerprint, job_record.cells_of(leaver,
    leaver.max_tokens), leaver.prompt_tokens + kept, soonest_end_ms(decided) / WORTH_FACTOR) and leaver or nil
end
