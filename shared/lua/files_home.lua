-- files_home: notes where the doors of this store keep files, or returns where they do.
-- KEYS config
-- ARGV
--   home text · `store`, or `folder <id of the folder>`
--   take_over int · 1 to replace the noted home
-- ANSWERS noted conflict
--   conflict: the noted home
-- KEEPS 9
-- USES oom_write

local noted = redis.call('HGET', k_config, 'files_home')
if noted and noted ~= home and take_over == 0 then
  return { 'conflict', noted }
end
redis.call('HSET', k_config, 'files_home', home)
return { 'noted' }
