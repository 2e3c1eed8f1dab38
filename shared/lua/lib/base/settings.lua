-- settings: reads system-wide settings; one that is missing or outside its range counts as its default.
-- KEYS config
-- The defaults and ranges are those of shared/settings/; tests/scripts/test_settings_in_scripts.py
-- compares them. A stored `auto` is returned as nil.
local function integer_setting(stored, default, low, high)
  local value = stored and number(stored, default, low, high)
  return value and value % 1 == 0 and value or default
end

-- The settings that admission reads come first: each comparison takes its time.
local function checked_setting(name, stored)
  if name == 'max_inflight' then
    return integer_setting(stored, nil, 1, 10000000)
  elseif name == 'max_queue_size' then
    return integer_setting(stored, nil, 1, 1000000)
  elseif name == 'max_queue_tokens' then
    return integer_setting(stored, nil, 1, 1000000000000)
  elseif name == 'live_slots' then
    return integer_setting(stored, 0, 0, 10000000)
  elseif name == 'live_places' then
    return math.min(10000000, integer_setting(stored, 0, 0, 1e14))
  elseif name == 'admission' then
    return stored == 'bounds' and 'bounds' or 'full'
  elseif name == 'generated_weight' then
    return integer_setting(stored, nil, 1, 1000)
  elseif name == 'max_wait_ms' then
    return integer_setting(stored, 8000, 1, 3600000)
  elseif name == 'admission_safety_margin' then
    return number(stored, 0.8, 0.05, 1)
  elseif name == 'degradation' then
    return stored == 'on' and 'on' or 'off'
  elseif name == 'max_tenant_bytes' then
    return integer_setting(stored, nil, 65536, 1e15)
  elseif name == 'store_bytes' then
    return integer_setting(stored, nil, 1)
  elseif name == 'fairness' then
    return stored == 'turns' and 'turns' or 'tokens'
  elseif name == 'preemption' then
    return (stored == 'on' or stored == 'auto') and stored or 'off'
  elseif name == 'quantum_ms' then
    return integer_setting(stored, 1000, 10, 600000)
  elseif name == 'lease_ms' then
    return integer_setting(stored, 15000, 100, 600000)
  elseif name == 'max_attempts' then
    return integer_setting(stored, 3, 1, 100)
  elseif name == 'result_ttl_s' then
    return integer_setting(stored, 3600, 1, 31536000)
  elseif name == 'max_files_bytes' then
    return integer_setting(stored, nil, 1048576, 1e15)
  end
  return stored
end

-- The settings that this script has read, by their names; false for one without a value.
local known_settings = {}

-- Stores a setting, which the script then reads again.
local function write_setting(name, value)
  redis.call('HSET', k_config, name, value)
  known_settings[name] = nil
end

-- Reads these settings in one command, and returns the settings that are known.
local function read_settings(names)
  local stored = redis.call('HMGET', k_config, unpack(names))
  for i = 1, #names do
    known_settings[names[i]] = checked_setting(names[i], stored[i]) or false
  end
  return known_settings
end

local function read_setting(name)
  if known_settings[name] == nil then
    known_settings[name] = checked_setting(name, redis.call('HGET', k_config, name)) or false
  end
  return known_settings[name]
end
