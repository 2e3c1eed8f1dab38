-- release: puts a worker's running jobs back into their queues, as in a drain; the attempt does not count.
-- KEYS
-- ARGV
--   worker text · the worker that releases the jobs
--   held rest · for each job: id, claim token
-- ANSWERS released
--   released: number of jobs that were requeued; the other jobs ended, or the worker had lost them
-- KEEPS 1 2 3 7 8
-- USES clock afford mark job waiting rq stats finish giveback lapse

local released = 0
for i = held, #ARGV, 2 do
  local job = read_job(ARGV[i])
  if job and job.state == 'running' and job.claim == ARGV[i + 1] and job.worker == worker then
    if lapse(job, false, now_ms) == 'requeued' then
      released = released + 1
    end
  end
end
return { 'released', released }
