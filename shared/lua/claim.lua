-- claim: leases the next jobs of a pool to one worker, and says which running jobs give their slots to other tenants.
-- KEYS worker books
-- ARGV
--   worker text · the worker that claims
--   claim_id text · claim token of all jobs that this call leases; a repeated call returns those that still run
--   slug text · the pool's model: its name in the form used in store keys
--   room int · number of free slots
--   cells_free int · number of free KV cells; those of paused jobs are free
--   aside text · tenants whose queued jobs are not claimed, separated by spaces
--   trusts_last int · 1 if several jobs on their last attempt may run at once
--   held text · a line for each job of the worker: id, claim token, tokens, CPU tokens, ms in its slot (-1: paused)
-- ANSWERS claimed
--   claimed: a list with one list for each leased job: id, payload or '', attempt number, ms to the deadline, ms to the
--   start deadline or -1, tenant, model, prompt tokens, max tokens, cancel code or '', traceparent, packed ids of the
--   kept tokens or '', label of the client's API key, ms in the queue before this claim, 1 if somebody follows it, 0 if
--   nobody does, '' if its door does not say; ids of paused jobs to resume; ids of jobs to pause; ids of
--   jobs that the worker has lost, also of those that leave it for another worker; ms until another call may pause a
--   job, or -1 if nobody else wants the slots
-- KEEPS 1 2 3 5 7 8
-- USES clock settings oom_write mark schema job_record turns priority heads lease running tier fastest_worker preempt
-- USES worker_report company migrate giveback evict_paused service pausing prefixes doorbell stats
-- LATER best_held note_holder pass_on with_newest
-- RARELY add_computing cancel_job change_set company_on counted_work cut_answer drop_earlier_attempts end_job
-- RARELY find_displaced find_leaver find_victim first_behind forget_job give_back give_slot has_victims is_paused
-- RARELY late_ending learn_factor leaves_to may_get_room next_contest_ms note_earlier_pauses note_wait open_exchange
-- RARELY owners_with_jobs parts_of_score pause read_factor read_held read_ids restore_service resume seal_of strike
-- RARELY take_slot tier_for tier_in_force unrecorded_service urgent_ones wait_for_room waits_for_head wake_worker

-- The most entries of the active set that one call examines, whether or not it can lease their jobs.
local MAX_EXAMINED = 64
-- A worker that cannot pause its jobs keeps a tenth of its slots free of batch jobs for this time after its last other
-- job, in ms. Without a free slot, each other job would wait until a batch job ends.
local KEPT_PART, INTERACTIVE_MS = 10, 30000

local worker_key = k_worker .. worker
local worker_fields = read_fields(worker_key, { 'claim_id', 'claim_ids', 'cells', 'suspect', 'prefill_tps', 'tpot_ms',
  'claim_resume', 'claim_pause', 'mu_wtps', 'generated_tps', 'fingerprint', 'can_pause', 'slots', 'asks_by_ms',
  'apart', 'prefixes', 'free_slots', 'interactive_ms' })
local fingerprint = worker_fields.fingerprint or ''
-- Nearly every claim needs these settings.
local set = settings.read_settings({ 'schema_oldest', 'preemption', 'fairness', 'quantum_ms', 'admission',
  'degradation', 'admission_safety_margin', 'max_attempts', 'lease_ms' })

local answer = { started = {}, resume = {}, pause = {}, lost = {}, ask_in_ms = -1 }
local function tell(told)
  return { 'claimed', told.started, told.resume, told.pause, told.lost, told.ask_in_ms }
end

-- Returns the jobs of a stored list that still run on this worker and are paused, or are not.
local function still_running(stored, are_paused)
  local ids = {}
  for id in string.gmatch(stored or '', '%S+') do
    local job = job_record.read_job(id)
    if job and job.state == 'running' and job.worker == worker and (job.paused_since_ms > 0) == are_paused then
      ids[#ids + 1] = id
    end
  end
  return ids
end

if worker_fields.claim_id == claim_id then
  for id in string.gmatch(worker_fields.claim_ids or '', '%S+') do
    local job = job_record.read_held(id, claim_id, worker)
    if job then
      answer.started[#answer.started + 1] = lease.description_of(job, fingerprint)
    end
  end
  answer.resume = still_running(worker_fields.claim_resume, false)
  answer.pause = still_running(worker_fields.claim_pause, true)
  for id, token in string.gmatch(held, worker_report.HELD_LINE) do
    if not job_record.read_held(id, token, worker) then
      answer.lost[#answer.lost + 1] = id
    end
  end
  -- The worker is not woken until this time, so it must claim by then as the first answer said.
  local asks_by_ms = number(worker_fields.asks_by_ms, nil, 0, now_ms + LIVE_MS)
  answer.ask_in_ms = asks_by_ms and math.max(0, asks_by_ms - now_ms) or -1
  return tell(answer)
end
if schema.is_outdated(set.schema_oldest) then
  return tell(answer)
end

stats.hold_counts()
local own = { prefill_tps = number(worker_fields.prefill_tps, 0), tpot_ms = number(worker_fields.tpot_ms, 0) }
local view = heads.read_view(slug, worker, own, number(worker_fields.cells, 0), trusts_last == 1,
  worker_fields.apart == '1')
view.held_prefixes = worker_fields.prefixes or ''
if worker_fields.suspect and worker_fields.suspect ~= '' then
  local suspect = job_record.read_job(worker_fields.suspect)
  view.has_suspect = suspect and suspect.state == 'running' and suspect.worker == worker
end
local worker_pauses = pausing.may_pause(worker_fields.can_pause)
local kept_free = worker_pauses and 0 or math.floor(number(worker_fields.slots, 0) / KEPT_PART)
-- Until the worker's jobs are read, the report is empty. Nothing is `seen` if no slot of the worker may change hands.
local report, seen, decided = { lost = {}, paused = {} }, nil, nil
local has_report, leased, min_wait_ms = false, {}, nil

-- Reads the worker's jobs, unless it has none and pauses none. Those that this call has leased have just got their
-- slots.
local function read_report()
  if not has_report and (held ~= '' or worker_pauses) then
    has_report = true
    report, seen, decided = worker_report.open_exchange(worker, slug, held, room, worker_fields)
    answer.lost = report.lost
    for _, job in ipairs(seen and leased or {}) do
      preempt.add_computing(seen, decided, job, job.group, 0, 0, 0, 0)
    end
  end
end

local function is_any_paused()
  return view.paused_jobs > 0 or string.find(held, ' -1\n', 1, true)
end

-- Without a paused job, and with a slot for each queued job of the pool, no job of the worker has to give its slot.
-- Then its jobs are not read: heartbeats charge their tenants. If a job gets no slot all the same, they are read late.
if view.queued_jobs > room or is_any_paused() then
  read_report()
end
-- Returns whether a job of the worker may give its slot to one that waits.
local function may_take_slots()
  if not has_report and priority.is_pool_wanted(slug) then
    read_report()
  end
  return seen and preempt.has_victims(report, seen)
end

local examined, free, cells = 0, room, cells_free

-- Returns whether the rest of the free slots are kept for jobs other than batch jobs, which have no turn then.
local function keeps_rest()
  return view.is_batch and free > 0 and free <= kept_free
    and (min_wait_ms or now_ms - number(worker_fields.interactive_ms, 0, 0, now_ms) <= INTERACTIVE_MS)
end

-- How many owners at the beginning of each set were passed: of the pool's set (''), and of the groups' sets.
local passed = { [''] = 0 }

-- Returns the least served owner, and its score, of a set's owners that were not passed, or none at the end of a group.
local function least_served(group)
  local first = passed[group] or 0
  return group ~= '' and first >= heads.MAX_PASSED and {}
    or redis.call('ZRANGE', priority.set_key(slug, group, view.is_batch), first, first, 'WITHSCORES')
end

-- Returns the paused job of a tenant that goes before the tenant's queued jobs, or nil. `may_start` is false if no
-- further job may be paused, so that a queued one would have no slot.
local function paused_first(tenant, may_start)
  local entry = worker_report.first_of_kind(report.paused[tenant], view.is_batch)
  return entry and not (may_start and worker_report.waits_for_head(seen, entry, slug)) and entry or nil
end

-- Returns what to do with a tenant whose turn it is: 'resume' or what `examine` returns; the job; and, if no slot is
-- free, the entry of the job that gives its slot, and the job that makes room among the paused ones if it has to.
local function look_at(tenant, group)
  if string.find(' ' .. aside .. ' ', ' ' .. tenant .. ' ', 1, true) then
    return 'pass'
  end
  local has_place, displaced = free > 0 or decided.paused_jobs < seen.most_paused, nil
  local is_crowded = not has_place and not worker_report.first_of_kind(report.paused[tenant], view.is_batch)
  if is_crowded and not evict_paused.may_get_room(seen, tenant, view.is_batch, own, fingerprint) then
    return 'pass'
  end
  local victim = free <= 0 and preempt.find_victim(report, seen, decided, tenant, group, view.is_batch) or nil
  if victim and is_crowded then
    displaced = evict_paused.find_displaced(report, seen, decided, tenant, group, view.is_batch, own, fingerprint)
    has_place = displaced ~= nil
  end
  if free <= 0 and not victim or is_crowded and not displaced then
    return 'pass'
  end
  local usable_cells = cells + (victim and heads.cells_for(victim.job) or 0)
  local entry = paused_first(tenant, has_place)
  if entry then
    return heads.wait_for_cells(view, entry.job, heads.cells_for(entry.job), usable_cells, free > 0, 'resume'),
      entry.job, victim
  end
  local action, job = heads.examine(view, tenant, group, usable_cells, free > 0)
  return action, job, victim, displaced
end

local function pause_victim(victim)
  preempt.take_slot(decided, victim)
  running.pause(victim.job)
  decided.paused_jobs = decided.paused_jobs + 1
  cells, free = cells + heads.cells_for(victim.job), free + 1
  answer.pause[#answer.pause + 1] = victim.job.id
end

local function start(job, group)
  if heads.is_suspect(view, job) then
    view.has_suspect = true
    redis.call('HSET', worker_key, 'suspect', job.id)
  end
  company.join_company(view, job)
  local waited_ms = lease.lease_job(job, group, worker, claim_id, fingerprint, worker_pauses)
  -- After the lease, which knows how many tokens of the answer are kept.
  if job.degrade >= 0 then
    heads.cut_answer(view, job)
  end
  if job.priority >= 0 then
    min_wait_ms = math.min(min_wait_ms or waited_ms, waited_ms)
  end
  leased[#leased + 1] = job
  if job.prefix ~= '' then
    view.held_prefixes = prefixes.with_newest(view.held_prefixes, job.prefix, number(worker_fields.slots, 1))
    prefixes.note_holder(slug, job.prefix, worker)
  end
  answer.started[#answer.started + 1] = lease.description_of(job, fingerprint)
end

local function go_on(job)
  running.resume(job)
  decided.paused_jobs = decided.paused_jobs - 1
  answer.resume[#answer.resume + 1] = job.id
end

-- Puts a paused job back into its queue.
local function let_go(job)
  giveback.give_back(job, false, now_ms)
  decided.paused_jobs = decided.paused_jobs - 1
  answer.lost[#answer.lost + 1] = job.id
end

-- Paused jobs that would be late after another quantum do not wait for their tenants' turns.
for _, entry in ipairs(seen and free > 0 and worker_report.urgent_ones(report, seen.quantum_ms) or {}) do
  if free > 0 and heads.fits(view, heads.cells_for(entry.job), cells) then
    preempt.give_slot(seen, decided, entry.job, entry.job.group)
    heads.clear_skips(entry.job)
    go_on(entry.job)
    free, cells = free - 1, cells - heads.cells_for(entry.job)
  end
end
while examined < MAX_EXAMINED and (free > 0 or may_take_slots()) do
  examined = examined + 1
  local owner = least_served('')
  if not owner[1] and not view.is_batch and passed[''] == 0 then
    -- Nobody wants slots for other work, so it is the turn of batch jobs.
    view.is_batch = true
    owner = least_served('')
  end
  if not owner[1] or keeps_rest() then
    break
  end
  local group = service.is_group(owner[1]) and owner[1] or ''
  local candidate = group == '' and owner or least_served(group)
  local action, job, victim, displaced = 'end of group', nil, nil, nil
  if candidate[1] and not service.belongs_to_set(candidate[1], slug, group, view.is_batch) then
    action = 'gone'
  elseif candidate[1] then
    action, job, victim, displaced = look_at(candidate[1], group)
  end
  if action == 'lease' or action == 'resume' then
    service.raise_virtual_time(slug, '', number(owner[2], 0))
    if group ~= '' then
      service.raise_virtual_time(slug, group, number(candidate[2], 0))
    end
    if displaced then
      let_go(displaced)
    end
    if victim then
      pause_victim(victim)
    end
    if seen then
      preempt.give_slot(seen, decided, job, action == 'lease' and group or job.group)
    end
    heads.clear_skips(job)
    if action == 'lease' then
      start(job, group)
    else
      go_on(job)
    end
    free, cells = free - 1, cells - heads.cells_for(job)
  elseif action == 'pass' then
    passed[group] = (passed[group] or 0) + 1
  elseif action == 'end of group' and passed[group] then
    passed[''] = passed[''] + 1
  elseif action == 'end of group' then
    turns.deactivate(group, slug)
  elseif action == 'stop' then
    break
  end
end
if not has_report and priority.is_pool_wanted(slug) then
  read_report()
end
local leaver = seen and free <= 0 and migrate.find_leaver(report, seen, decided, worker, own, fingerprint)
if leaver then
  let_go(leaver)
end
if view.left_to_faster then
  fastest_worker.wake_worker(view.faster.name)
end
if min_wait_ms and view.degrades then
  tier.note_wait(slug, min_wait_ms)
end
if #leased + #answer.resume + #answer.pause > 0 then
  local leased_ids = {}
  for i = 1, #leased do
    leased_ids[i] = leased[i].id
  end
  redis.call('HSET', worker_key, 'claim_id', claim_id, 'claim_ids', table.concat(leased_ids, ' '),
    'claim_resume', table.concat(answer.resume, ' '), 'claim_pause', table.concat(answer.pause, ' '))
  if min_wait_ms and not worker_pauses then
    redis.call('HSET', worker_key, 'interactive_ms', now_ms)
  end
  redis.call('PEXPIRE', worker_key, 60000)
end
-- An idle worker is woken for jobs whose prompts it has begun. One that leaves jobs although it has a free slot (it has
-- too few cells, or sets their tenants aside) counts as full until it finds none that it leaves.
if view.held_prefixes ~= '' then
  local leaves_jobs = free > 0 and not keeps_rest() and view.queued_jobs > #leased
    and number(redis.call('HGET', k_books .. slug, 'waiting'), 0) > 0
  local woken_for = leaves_jobs and 0 or free
  if number(worker_fields.free_slots) ~= woken_for or view.held_prefixes ~= worker_fields.prefixes then
    redis.call('HSET', worker_key, 'free_slots', woken_for, 'prefixes', view.held_prefixes)
    if woken_for <= 0 and (#leased > 0 or leaves_jobs) then
      doorbell.pass_on(slug)
    end
  end
end
if seen then
  answer.ask_in_ms = preempt.next_contest_ms(seen, decided)
end
if worker_pauses then
  worker_report.note_next_claim(worker_key, worker_fields.asks_by_ms, seen, decided, answer.ask_in_ms)
end
stats.write_counts()
return tell(answer)
