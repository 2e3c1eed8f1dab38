-- configure: writes the system-wide settings once, or tells which differ.
-- KEYS config
-- ARGV
--   take_over int · 1 to replace what is there
--   settings rest · name, value, …
-- ANSWERS configured conflict
--   conflict: name, value held, value given, …
-- KEEPS 9
-- USES afford
local differing = {}
for i = settings, #ARGV, 2 do
  local held = redis.call('HGET', k_config, ARGV[i])
  if held and held ~= ARGV[i + 1] then
    differing[#differing + 1] = ARGV[i]
    differing[#differing + 1] = held
    differing[#differing + 1] = ARGV[i + 1]
  end
end
if #differing > 0 and take_over == 0 then
  return { 'conflict', unpack(differing) }
end
redis.call('HSET', k_config, unpack(ARGV, settings))
return { 'configured' }
