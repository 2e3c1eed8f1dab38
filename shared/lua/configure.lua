-- configure: writes the system-wide settings, or returns those that differ from the stored ones.
-- KEYS config
-- ARGV
--   take_over int · 1 to overwrite stored settings that differ
--   settings rest · name, value, …
-- ANSWERS configured conflict
--   conflict: for each setting that differs: name, stored value, given value
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
