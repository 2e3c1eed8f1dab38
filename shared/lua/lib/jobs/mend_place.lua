-- mend_place: puts an inflight job where its record says, if another program removed or changed entries.
-- KEYS inflight deadlines leases polls order lists tenant tenants queues rq_job rq_queues rq_queue rq_wip
-- KEEPS 1 2 7
-- USES clock settings repair job_record waiting turns service priority forget

-- The longest deadline that a request can name, in ms. A job whose deadline is further away has a spoiled record.
local MAX_DEADLINE_MS = 86400000

local function write_field(job, name, value)
  redis.call('HSET', k_rq_job .. job.id, 'penstock_' .. name, value)
end

-- Adds or corrects a member of a sorted set whose score is a time that is not after `ms` from now.
local function ensure_time(key, ms, member)
  if not number(redis.call('ZSCORE', key, member), nil, 1, now_ms + ms) then
    redis.call('ZADD', key, now_ms + ms, member)
    repair.note_repairs(1)
  end
end

-- Restores the tenant, model and state in a job's record from RQ's fields and the job's places. Returns the job, or nil
-- if the record is gone or none of these names a tenant and a model.
local function restore_identity(id)
  local key = k_rq_job .. id
  local fields = read_fields(key, { 'origin', 'penstock_tenant', 'penstock_slug', 'penstock_state',
    'penstock_ended_ms' })
  local tenant, slug = string.match(fields.origin or '', '^([%w_-]+)%.(.+)$')
  tenant, slug = fields.penstock_tenant or tenant, fields.penstock_slug or slug
  if not tenant or not slug then
    return nil
  end
  local state = fields.penstock_state
  if not job_record.JOB_STATES[state] then
    state = fields.penstock_ended_ms and 'failed' or redis.call('ZSCORE', k_leases, id) and 'running' or 'queued'
  end
  redis.call('HSET', key, 'penstock_tenant', tenant, 'penstock_slug', slug, 'penstock_state', state)
  note_mend('job', key)
  return job_record.read_job(id)
end

-- A job's tenant and model are written twice, also as RQ's origin. If they differ, the queue that holds the job tells
-- which is right. Returns the job.
local function restore_queue(job)
  local origin = redis.call('HGET', k_rq_job .. job.id, 'origin')
  if origin == job.queue then
    return job
  end
  local tenant, slug = string.match(origin or '', '^([%w_-]+)%.(.+)$')
  local is_in_origin = tenant and (redis.call('ZSCORE', k_order .. origin, job.id)
    or redis.call('ZSCORE', k_rq_wip .. origin, job.id .. ':' .. job.claim))
  if is_in_origin then
    write_field(job, 'tenant', tenant)
    write_field(job, 'slug', slug)
  else
    redis.call('HSET', k_rq_job .. job.id, 'origin', job.queue)
  end
  note_mend('job', k_rq_job .. job.id)
  return job_record.read_job(job.id)
end

-- Restores a job's time of admission and deadline, so that it ends. Returns the job.
local function restore_times(job)
  local score = number(redis.call('ZSCORE', k_inflight, job.id), nil, 1, now_ms)
  local is_admitted_ok = job.admitted_ms > 0 and job.admitted_ms <= now_ms
  local admitted_ms = is_admitted_ok and job.admitted_ms or score or now_ms
  local is_deadline_ok = job.deadline_ms > 0 and job.deadline_ms <= admitted_ms + MAX_DEADLINE_MS
  if is_admitted_ok and is_deadline_ok then
    return job
  end
  write_field(job, 'admitted_ms', whole(admitted_ms))
  if not is_deadline_ok then
    local patience_ms = number(redis.call('HGET', k_rq_job .. job.id, 'penstock_patience_ms'), 0, 0, MAX_DEADLINE_MS)
    write_field(job, 'deadline_ms', whole(admitted_ms + patience_ms))
  end
  note_mend('job', k_rq_job .. job.id)
  return job_record.read_job(job.id)
end

-- Makes the sets of an owner that has queued jobs in a pool agree with that.
local function ensure_owner(owner, slug, group)
  local is_batch = priority.has_only_batch(owner, slug) or false
  if redis.call('SISMEMBER', k_lists .. owner, slug) == 0 then
    -- The pool's sum of weights still contains the owner's weight, which `activate` adds again.
    if group == '' then
      turns.add_weight(slug, is_batch, 0 - number(redis.call('HGET', k_tenant .. owner, 'w|' .. slug), 0, 0))
    end
    turns.activate(owner, slug, is_batch)
    repair.note_repairs(1)
    return
  end
  -- The owner's service is written twice, also as its score. Whichever is usable restores the other.
  repair.note_repairs(turns.change_set(owner, slug, is_batch))
  local service = number(redis.call('HGET', k_tenant .. owner, 's|' .. slug), nil, service.MIN_SERVICE_MWT)
  if not service then
    service = service.unrecorded_service(owner, slug, group)
    redis.call('HSET', k_tenant .. owner, 's|' .. slug, whole(service))
    repair.note_repairs(1)
  end
  repair.correct_score(priority.set_key(slug, group, is_batch), service, owner)
end

-- Makes the sets of a queue's tenant, group and pool agree with the fact that the tenant has queued or paused jobs.
-- Returns the tenant's group.
local function ensure_active(job)
  repair.note_repairs(redis.call('SADD', k_rq_queues, k_rq_queue .. job.queue)
    + redis.call('ZADD', k_tenants, 'NX', now_ms, job.tenant))
  if not redis.call('ZSCORE', k_queues, job.queue) then
    redis.call('ZADD', k_queues, job.deadline_ms + 1000 * settings.read_setting('result_ttl_s'), job.queue)
    repair.note_repairs(1)
  end
  if not turns.wants_slots(job.tenant, job.slug) then
    return ''
  end
  local group = service.group_in(redis.call('HGET', k_tenant .. job.tenant, 'g|' .. job.slug))
  ensure_owner(job.tenant, job.slug, group)
  if group ~= '' then
    ensure_owner(group, job.slug, '')
  end
  return group
end

local function place_queued(job)
  repair.note_repairs(redis.call('ZREM', k_leases, job.id))
  repair.correct_score(k_deadlines, job.wanted_ms, job.id)
  local score = number(redis.call('ZSCORE', k_order .. job.queue, job.id))
  local priority, latest_us = priority.parts_of_score(score or 0)
  if priority ~= job.priority and latest_us == job.latest_us
    and not priority.PRIORITIES[redis.call('HGET', k_rq_job .. job.id, 'penstock_priority')] then
    job.priority = priority
    write_field(job, 'priority', priority)
    repair.note_repairs(1)
  end
  local most_us = job.deadline_ms * 1000 + 999 + (job.refusals > 0 and priority.BEHIND_US or 0)
  if job.latest_us == 0 or job.latest_us > most_us then
    job.latest_us = score and number(latest_us, nil, 0, most_us) or job.deadline_ms * 1000
    write_field(job, 'latest_us', whole(job.latest_us))
    repair.note_repairs(1)
  end
  if redis.call('ZSCORE', k_order .. job.queue, job.id) then
    repair.correct_score(k_order .. job.queue, priority.order_score(job.priority, job.latest_us), job.id)
  else
    redis.call('LREM', k_rq_queue .. job.queue, 0, job.id)
    waiting.enlist(job)
    repair.note_repairs(1)
  end
end

-- A running job without a lease gets one. Its worker then renews the lease or, if no worker runs the job any more, reap
-- takes the job back when the lease ends. So that a job does not wait for a lease that ends in a year, a lease that is
-- longer than the setting is shortened.
local function place_running(job)
  repair.note_repairs(redis.call('ZREM', k_deadlines, job.id) + redis.call('ZREM', k_order .. job.queue, job.id))
  ensure_time(k_leases, settings.read_setting('lease_ms'), job.id)
end

-- Puts the job with this id where its record says that it is, and returns the job. A job without a usable record is
-- forgotten.
local function place(id)
  local job = job_record.read_job(id) or restore_identity(id)
  if not job then
    redis.call('DEL', k_rq_job .. id)
    forget.forget_job(id)
    repair.note_repairs(1)
    return nil
  end
  if job.state ~= 'queued' and job.state ~= 'running' then
    for _, key in ipairs({ k_inflight, k_deadlines, k_leases, k_polls }) do
      repair.note_repairs(redis.call('ZREM', key, id))
    end
    return job
  end
  job = restore_times(restore_queue(job))
  repair.correct_score(k_inflight, job.admitted_ms, id)
  if job.state == 'queued' then
    place_queued(job)
  else
    place_running(job)
  end
  if job.poll_grace_ms > 0 then
    ensure_time(k_polls, job.poll_grace_ms, id)
  end
  return job
end
