-- schema: the number of the store's format in this version, and whether the store needs processes of a newer one.
-- KEYS
-- shared/schema.py has the same numbers; docs/upgrade.md says when to raise them.
local SCHEMA, MAX_SCHEMA = 2, 9999

-- Returns the number in a field of the config, or nil if it is missing or was not written by Penstock.
local function schema_in(field)
  -- Like shared/schema.py, this takes one to four digits and no other notation of a number.
  local stored_number = tonumber(string.match(field or '', '^%d%d?%d?%d?$'))
  return stored_number and stored_number >= 1 and stored_number <= MAX_SCHEMA and stored_number or nil
end

-- Whether a newer version has written data that this version must not work on. This version's workers then drain, and
-- no jobs are admitted, claimed or taken back by its processes; running jobs may still end.
local function is_outdated(schema_oldest)
  return (schema_in(schema_oldest) or 1) > SCHEMA
end
