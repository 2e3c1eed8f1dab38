-- configure: writes the system-wide settings and the store's format, or returns why this process must not start.
-- KEYS config
-- ARGV
--   take_over int · 1 to overwrite stored settings that differ
--   works_beside int · the oldest format whose processes can work on what this process writes
--   reads_from int · the oldest format that this process can work on
--   store_bytes int · how many bytes the store may take: its maxmemory, or half of its machine's memory without one
--   settings rest · name, value, …
-- ANSWERS configured conflict format
--   conflict: a list that has for each setting that differs: name, stored value, given value
--   format: the process cannot work on the store's format; the store's format; the oldest format that may work on it
-- KEEPS 9
-- USES oom_write schema

-- A store without a number is either empty or was written by a version without numbers, which has format 1.
local stored = read_fields(k_config, { 'schema', 'schema_oldest' })
local format, oldest = schema.schema_in(stored.schema), schema.schema_in(stored.schema_oldest) or 1
local is_empty = redis.call('EXISTS', k_config) == 0
if schema.is_outdated(oldest) or not is_empty and (format or 1) < reads_from then
  return { 'format', format or 1, oldest }
end
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
  return { 'conflict', differing }
end
redis.call('HSET', k_config, 'schema', math.max(format or 1, schema.SCHEMA), 'schema_oldest', math.max(oldest,
  works_beside), 'store_bytes', store_bytes, unpack(ARGV, settings))
return { 'configured' }
