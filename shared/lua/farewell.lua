-- farewell: removes a worker that is stopping, so that admission no longer counts its slots.
-- KEYS workers pool worker bell rq_executions
-- ARGV
--   worker text · the worker that stops; it must hold no jobs
--   slug text · the worker's model: its name in the form used in store keys
--   fault text · why the worker ends, '' if it was asked to stop or comes back when its upstream does
-- ANSWERS gone
-- KEEPS 9 12
-- USES clock oom_write mark fleet fastest_worker crashes
-- RARELY leaves_to wake_worker

if fault ~= '' then
  crashes.note_crash(slug, worker, now_ms, fault)
  crashes.count_crash(redis.call('HGET', k_worker .. worker, 'model') or slug)
end
redis.call('ZREM', k_workers, worker)
redis.call('ZREM', k_pool .. slug, worker)
redis.call('DEL', k_worker .. worker, k_bell .. worker, k_rq_executions(worker))
fleet.discount(worker)
fastest_worker.note_fastest(slug, worker, false)
fleet.retire_silent(now_ms)
return { 'gone' }
