-- mend_record: sets aside a value that another program has stored in place of a tenant's or a group's record.
-- KEYS tenant
-- ARGV
--   owner text · the tenant, or the group as the owner of a record (shared/store/keys.py: group_owner)
-- ANSWERS sound
--   sound: the record is a hash, or does not exist
-- KEEPS 9
-- USES oom_write

-- The guard renames a value of another type when a command meets it, and counts and announces that.
redis.call('HLEN', k_tenant .. owner)
return { 'sound' }
