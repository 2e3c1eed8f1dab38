-- release: a draining worker gives jobs back unharmed; the attempt does not count.
-- KEYS
-- ARGV
--   worker text · who gives back
--   held rest · id, token, …
-- ANSWERS released
--   released: how many went back to their lists
-- KEEPS 1 2 3 7 8
-- USES clock afford job waiting rq stats finish giveback lapse

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
