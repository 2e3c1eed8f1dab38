-- predictions: counts kept and broken promises, and measures how far predicted starts and ends were from the real ones.
-- KEYS
-- USES clock stats eta job_record

-- The codes of failures that the request itself caused. They say nothing about the queue's promise.
local FAULTS_OF_REQUESTS = { context_length_exceeded = true, invalid_value = true, unsupported_parameter = true }

-- An admission promises an answer by the deadline. Counts whether the promise to a job that ends now was kept. A job
-- that was canceled for its client, and a job that failed because of its request, count neither way.
local function judge_promise(job, ending, now_ms)
  if ending.outcome == 'canceled' or FAULTS_OF_REQUESTS[ending.code] then
    return
  end
  local is_kept = ending.outcome == 'succeeded' and now_ms <= job.deadline_ms
  stats.count('promises|' .. stats.label_of(job.tenant) .. '|' .. job.model .. '|' .. (is_kept and 'kept' or 'broken'))
  local prediction = ending.outcome ~= 'failed' and eta.prediction_of(job)
  if prediction then
    -- A job that is stopped at its deadline ends there, however long that takes.
    eta.learn_end(job.slug, prediction, math.min(now_ms, job.deadline_ms) - job.admitted_ms)
  end
end

-- Returns the side on which an event was: later or earlier than predicted.
local function side_of(late_by_ms)
  return late_by_ms > 0 and 'late' or 'early'
end

-- Compares admission's prediction for a job with its first token, `ttft_ms` after its claim (-1 without one), and with
-- its end, if it succeeded. The end of a job that was stopped says only that its answer would have come later.
local function judge_predictions(job, outcome, ttft_ms, now_ms)
  local fields = job_record.facts_of(job)
  local started_ms, eta_ms = number(fields.penstock_started_ms, nil, job.admitted_ms, now_ms),
    number(fields.penstock_eta_ms)
  local prediction = eta.prediction_of(job)
  if started_ms and prediction and ttft_ms >= 0 then
    local late_by_ms = started_ms + ttft_ms - job.admitted_ms - prediction.start_ms
    stats.observe('start_prediction_error|' .. side_of(late_by_ms), math.abs(late_by_ms))
  end
  if eta_ms and outcome == 'succeeded' then
    stats.observe('end_prediction_error|' .. side_of(now_ms - eta_ms), math.abs(now_ms - eta_ms))
  end
end
