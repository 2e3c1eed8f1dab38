-- alerts: lets one process at a time look after the alerts, and stores what it has told.
-- KEYS alerts
-- ARGV
--   asker text · the process that asks
--   lease_ms int · for how long the alerts are the process's
--   state text · the new state, which only the process that has the alerts may store; '' stores none
--   tested text · the id of a test message and its result; '' if none was sent
-- ANSWERS alerts held
--   alerts: the state; the id of the test message that is to be sent, or ''; the time in ms
--   held: another process has the alerts
-- KEEPS 8
-- USES clock oom_write mark

-- Without any door for this long, what was told is forgotten.
local KEPT_MS = 30 * 86400000

local saved = read_fields(k_alerts, { 'asker', 'until_ms', 'state', 'test' })
local until_ms = number(saved.until_ms, 0)
-- A time that is further away was not written by this script.
local is_taken = saved.asker and until_ms > now_ms and until_ms <= now_ms + 600000
if is_taken and saved.asker ~= asker or state ~= '' and saved.asker ~= asker then
  return { 'held' }
end
redis.call('HSET', k_alerts, 'asker', asker, 'until_ms', whole(now_ms + lease_ms))
if state ~= '' then
  redis.call('HSET', k_alerts, 'state', state)
end
if tested ~= '' then
  redis.call('HSET', k_alerts, 'tested', tested)
  if saved.test and saved.test == string.match(tested, '^%S+') then
    redis.call('HDEL', k_alerts, 'test')
    saved.test = false
  end
end
redis.call('PEXPIRE', k_alerts, KEPT_MS)
return { 'alerts', state ~= '' and state or saved.state or '', saved.test or '', now_ms }
