-- fastest_worker: keeps which live worker of a pool is the fastest, and says which jobs slower workers leave to it.
-- KEYS books worker tenant bell
-- USES clock job_record lengths

-- A worker is slower than the fastest one only if the fastest one needs at most this part of its time per token. Equal
-- machines differ by less.
local MUCH_FASTER = 0.8
-- A slower worker must be in time with an answer that is longer by this factor than the one that the faster worker must
-- be in time with. On a slow worker, a late answer wastes seconds of a slot.
local LONGER = 1.3

-- Records the worker as the pool's fastest if it is, or if the recorded one is no longer live. `takes_jobs` is false
-- for a worker that drains.
local function note_fastest(slug, name, takes_jobs)
  local pool = read_fields(k_books .. slug, { 'fast_worker', 'fast_tpot_ms', 'fast_beat_ms' })
  local rates = read_fields(k_worker .. name, { 'prefill_tps', 'tpot_ms', 'cells' })
  local prefill_tps, tpot_ms = number(rates.prefill_tps, 0), number(rates.tpot_ms, 0)
  if takes_jobs and prefill_tps > 0 and tpot_ms > 0 then
    if pool.fast_worker == name or tpot_ms < number(pool.fast_tpot_ms, math.huge) or now_ms - number(pool.fast_beat_ms,
      0, 0, now_ms) > LIVE_MS then
      redis.call('HSET', k_books .. slug, 'fast_worker', name, 'fast_prefill_tps', prefill_tps, 'fast_tpot_ms', tpot_ms,
        'fast_cells', number(rates.cells, 0), 'fast_beat_ms', now_ms)
    end
  elseif pool.fast_worker == name then
    redis.call('HDEL', k_books .. slug, 'fast_worker', 'fast_beat_ms')
  end
end

-- Returns the pool's fastest worker, or nil if it is unknown or no longer live. Its `wait_ms` is the time until one of
-- the pool's slots is free, as it is on average when all slots are taken.
local function read_fastest(slug)
  local pool = read_fields(k_books .. slug, { 'fast_worker', 'fast_prefill_tps', 'fast_tpot_ms', 'fast_cells',
    'fast_beat_ms', 'run_ms', 'slots' })
  local prefill_tps, tpot_ms = number(pool.fast_prefill_tps, 0), number(pool.fast_tpot_ms, 0)
  if not pool.fast_worker or prefill_tps <= 0 or tpot_ms <= 0 or now_ms - number(pool.fast_beat_ms, 0, 0,
    now_ms) > LIVE_MS then
    return nil
  end
  return { name = pool.fast_worker, prefill_tps = prefill_tps, tpot_ms = tpot_ms, cells = number(pool.fast_cells, 0),
    wait_ms = number(pool.run_ms, 0, 0) / math.max(1, number(pool.slots, 1)) }
end

-- Returns the first of two workers, or pools, if it is known and much faster than the second, else nil.
local function if_much_faster(worker, than)
  return worker and than.prefill_tps > 0 and worker.tpot_ms <= MUCH_FASTER * than.tpot_ms and worker or nil
end

-- Returns how long a worker takes for a job whose answer has `answer_tokens`, in ms. The tokens that are kept from an
-- earlier attempt are computed like a prompt.
local function time_on(worker, job, answer_tokens)
  return 1000 * (job.prompt_tokens + job.kept_tokens) / worker.prefill_tps
    + math.max(0, answer_tokens - job.kept_tokens) * worker.tpot_ms
end

-- Whether the worker with the rates `own` leaves the job to the faster one: it would be late if the answer were 1.3
-- times as long as a long one (the 90th percentile) or as the median one, and the faster worker would be in time with
-- that one.
local function leaves_to(faster, own, job)
  local left_ms = job.deadline_ms - now_ms
  if time_on(own, job, job.max_tokens) <= left_ms or job_record.cells_of(job, job.max_tokens) > faster.cells then
    return false
  end
  local of_tenant = read_fields(k_tenant .. job.tenant, { 'len_n', 'len_p90', 'len_p50' })
  local of_pool = read_fields(k_books .. job.slug, { 'len_n', 'len_p90', 'len_p50' })
  for _, length in ipairs({ 'len_p90', 'len_p50' }) do
    local tokens = lengths.length_of(of_tenant.len_n, of_tenant[length], of_pool.len_n, of_pool[length], job.max_tokens,
      job.candidates)
    local longer = math.min(job.max_tokens, LONGER * tokens)
    if time_on(own, job, longer) > left_ms and faster.wait_ms + time_on(faster, job, tokens) <= left_ms then
      return true
    end
  end
  return false
end

-- Wakes the faster worker, which may be idle: the ring for the job may have reached another worker. A `+` is not a job
-- id.
local function wake_worker(name)
  if redis.call('LLEN', k_bell .. name) == 0 then
    redis.call('LPUSH', k_bell .. name, '+')
    redis.call('EXPIRE', k_bell .. name, 60)
  end
end
