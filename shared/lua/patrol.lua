-- patrol: gives one process the next queues to reconcile, so that all processes together examine all queues.
-- KEYS queues patrol
-- ARGV
--   asker text · the process that asks
--   limit int · about how many queues to return
--   rest_ms int · the time between two rounds
--   pause_ms int · the time between two calls in a round
-- ANSWERS patrol
--   patrol: ms after which the process should ask again; the number of the round; 1 if this call begins the round; a
--   list of the queues to reconcile, which is empty for a process that is not on patrol
-- KEEPS 8
-- USES clock oom_write mark

-- One process is on patrol at a time. It stays on patrol as long as it asks again within this time. After that, another
-- process continues where it stopped.
local ON_PATROL_MS = 10000

local held = peek_fields(k_patrol, { 'asker', 'until_ms', 'cursor', 'round' })
local until_ms, round = number(held.until_ms, 0), number(held.round, 0)
-- A time that is further away was not written by this script.
if held.asker and held.asker ~= asker and until_ms > now_ms and until_ms <= now_ms + ON_PATROL_MS then
  return { 'patrol', math.max(rest_ms, pause_ms), round, 0, {} }
end

-- ZSCAN returns each queue that exists from the beginning of the round to its end, even if queues are added, removed
-- and ordered anew in between. A walk by rank would skip the queues behind one that moves to the end of the order.
local cursor = string.match(held.cursor or '', '^%d+$') or '0'
local page = redis.pcall('ZSCAN', k_queues, cursor, 'COUNT', limit)
if page.err then
  page = { '0', {} }
end
local begins = cursor == '0' and 1 or 0
round = (round + begins) % 1000000
redis.call('HSET', k_patrol, 'asker', asker, 'until_ms', now_ms + ON_PATROL_MS, 'cursor', page[1], 'round', round)
redis.call('PEXPIRE', k_patrol, 3600000)
local queues = {}
for i = 1, #page[2], 2 do
  queues[#queues + 1] = page[2][i]
end
return { 'patrol', page[1] == '0' and rest_ms or pause_ms, round, begins, queues }
