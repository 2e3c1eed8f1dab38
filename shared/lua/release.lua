-- release: puts a worker's running jobs back into their queues: in a drain, or because their attempts failed.
-- KEYS
-- ARGV
--   worker text · the worker that releases the jobs
--   counts int · 1 if the attempts failed and count; 0 if the worker could not run the jobs, as in a drain
--   held rest · for each job: id, claim token, ms until it may be claimed again, its refusal: a result (JSON) or ''
-- ANSWERS released
--   released: number of jobs that were requeued; the other jobs ended, or the worker had lost them
-- KEEPS 1 2 3 7 8
-- USES clock oom_write mark job_record lapse deferral

-- `refusal` is not '' if the server behind the worker has refused the job: the job's result if it is never accepted.
local released = 0
for i = held, #ARGV, 4 do
  local job = job_record.read_held(ARGV[i], ARGV[i + 1], worker)
  if job then
    local is_refused_too_often = deferral.defer(job, number(ARGV[i + 2], 0, 0), ARGV[i + 3])
    if lapse.end_lease(job, counts == 1, now_ms, is_refused_too_often) == 'requeued' then
      released = released + 1
    end
  end
end
return { 'released', released }
