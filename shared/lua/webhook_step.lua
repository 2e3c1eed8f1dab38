-- webhook_step: writes how a try to send a webhook ended; the webhook is told, due again or given up.
-- KEYS webhook rq_job batch_record
-- ARGV
--   id text · the webhook
--   tenant text · its tenant
--   token text · the claim
--   result text · how the try ended, a result of shared/store/webhook_results.py; '' if none was made
--   rest_ms int · ms until the next try; -1 to make none
-- ANSWERS told waits gave_up lost
--   waits: ms until the next try
--   lost: another process has claimed the webhook, or it is gone
-- KEEPS 9 13
-- USES clock oom_write mark stats webhook

local saved = read_fields(k_webhook .. id, { 'token', 'ended_ms', 'kind', 'tenant' })
if saved.token ~= token or saved.tenant ~= tenant then
  return { 'lost' }
end
if result == '' then
  webhook.make_due(tenant, id, now_ms + math.max(0, rest_ms))
  return { 'waits', math.max(0, rest_ms) }
end
stats.count('webhooks|' .. result)
local tries = number(redis.call('HGET', k_webhook .. id, 'tries'), 0, 0, 1e6) + 1
-- Writes the state of the webhook to the record of its job or batch, if that has not expired.
local function show(state)
  local is_job = saved.kind == 'job'
  local record, prefix = is_job and k_rq_job .. id or k_batch_record .. id, is_job and 'penstock_' or ''
  if redis.call('HEXISTS', record, prefix .. 'callback_url') == 1 then
    redis.call('HSET', record, prefix .. 'webhook', state .. ' ' .. tries .. ' ' .. result)
  end
end
if result == 'delivered' then
  show('delivered')
  webhook.drop_webhook(tenant, id)
  webhook.end_turn(tenant)
  return { 'told' }
end
local until_ms = number(saved.ended_ms, now_ms, 0, now_ms) + webhook.TOLD_FOR_MS
local due_ms = now_ms + rest_ms
if rest_ms < 0 or now_ms >= until_ms then
  show('gave_up')
  stats.count('webhooks|gave_up')
  webhook.drop_webhook(tenant, id)
  webhook.end_turn(tenant)
  return { 'gave_up' }
end
-- The last try is made when the day ends, so that a receiver that comes back just before is told.
due_ms = math.min(due_ms, until_ms)
redis.call('HSET', k_webhook .. id, 'tries', tries, 'last', result)
show('waiting')
webhook.make_due(tenant, id, due_ms)
webhook.end_turn(tenant)
return { 'waits', due_ms - now_ms }
