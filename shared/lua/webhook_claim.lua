-- webhook_claim: gives one process the webhook that is due and whose tenant was served the longest ago.
-- KEYS webhook webhooks webhook_due webhook_turns
-- ARGV
--   token text · the claim, which identifies this process to webhook_step
--   lease_ms int · for how long the webhook is this process's
--   busy rest · tenants for which this process already sends the most webhooks that it may send at once
-- ANSWERS claimed none
--   claimed: the webhook's id; its tenant; now in ms; a list of the fields and values of its record
--   none: ms until a webhook is due, or -1 if only busy tenants have webhooks or no tenant has any
-- KEEPS 9 13
-- USES clock oom_write mark webhook

local EXAMINED = 64
local is_busy, examined = {}, 0
for i = busy, #ARGV do
  is_busy[ARGV[i]] = true
end
for _, tenant in ipairs(redis.call('ZRANGEBYSCORE', k_webhook_turns, '-inf', now_ms, 'LIMIT', 0, EXAMINED)) do
  if not is_busy[tenant] and examined < EXAMINED then
    local ids = redis.call('ZRANGEBYSCORE', k_webhook_due .. tenant, '-inf', now_ms, 'LIMIT', 0, EXAMINED - examined)
    for _, id in ipairs(ids) do
      examined = examined + 1
      local owner = redis.call('HGET', k_webhook .. id, 'tenant')
      if owner == tenant then
        redis.call('HSET', k_webhook .. id, 'token', token)
        -- A webhook that another program has removed from this set is listed again.
        redis.call('ZADD', k_webhooks, 'NX', number(redis.call('HGET', k_webhook .. id, 'ended_ms'), now_ms, 0,
          now_ms), id)
        redis.call('ZADD', k_webhook_due .. tenant, now_ms + lease_ms, id)
        webhook.end_turn(tenant)
        return { 'claimed', id, tenant, now_ms, redis.call('HGETALL', k_webhook .. id) }
      end
      if not owner then
        webhook.drop_webhook(tenant, id)
      else
        redis.call('ZREM', k_webhook_due .. tenant, id)
      end
    end
    webhook.end_turn(tenant)
  end
end
local next_turn = redis.call('ZRANGEBYSCORE', k_webhook_turns, '(' .. now_ms, '+inf', 'WITHSCORES', 'LIMIT', 0, 1)[2]
return { 'none', next_turn and math.ceil(math.min(webhook.LONGEST_WAIT_MS, number(next_turn, now_ms) - now_ms)) or -1 }
