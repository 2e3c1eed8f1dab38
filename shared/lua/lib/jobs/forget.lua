-- forget: removes the remaining keys and entries of a job whose record another program deleted or corrupted.
-- KEYS inflight deadlines leases polls payload partial rq_job
-- KEEPS 2 4 9
-- USES stats
local function forget_job(id)
  -- A record that another program changed and did not delete may say enough for sweep to restore the job.
  if redis.call('ZSCORE', k_inflight, id) and redis.call('HEXISTS', k_rq_job .. id, 'origin') == 1 then
    return
  end
  -- No job was ever admitted under a name that is not an id.
  if redis.call('ZREM', k_inflight, id) == 1 and string.find(id, '^[%w_-]+$') then
    stats.count('ended|forgotten')
  end
  redis.call('ZREM', k_deadlines, id)
  redis.call('ZREM', k_leases, id)
  redis.call('ZREM', k_polls, id)
  redis.call('DEL', k_payload .. id, k_partial .. id, k_rq_job .. id)
end
