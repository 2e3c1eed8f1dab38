-- list_page: reads a part of a list of files or batches, and removes ids from it whose records have expired.
-- KEYS files file batches batch_record
-- ARGV
--   kind text · files or batches
--   owner text · the list: a tenant or, for files, also `<tenant>.<purpose>`
--   after text · the id behind which the part begins, which need not be in the list; '' for the beginning
--   oldest_first int · 1 for the order of creation, 0 for the opposite
-- ANSWERS page
--   page: 1 if there may be more entries; the last id that was examined, or `after`; how many ids were examined; a list
--   that has for each entry its id and a list of the fields and values of its record
-- KEEPS 9
-- USES oom_write

local EXAMINED = 64
local list = (kind == 'files' and k_files or k_batches) .. owner
local records = kind == 'files' and k_file or k_batch_record
-- All entries have the same score. Ids begin with their time, so the order of the ids is that of their creation.
local ids
if oldest_first == 1 then
  ids = redis.call('ZRANGEBYLEX', list, after == '' and '-' or '(' .. after, '+', 'LIMIT', 0, EXAMINED)
else
  ids = redis.call('ZREVRANGEBYLEX', list, after == '' and '+' or '(' .. after, '-', 'LIMIT', 0, EXAMINED)
end
local entries = {}
for _, id in ipairs(ids) do
  local record = redis.call('HGETALL', records .. id)
  if #record > 0 then
    entries[#entries + 1] = id
    entries[#entries + 1] = record
  else
    redis.call('ZREM', list, id)
  end
end
return { 'page', #ids == EXAMINED and 1 or 0, ids[#ids] or after, #ids, entries }
