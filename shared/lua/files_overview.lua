-- files_overview: returns how many bytes the files and batches of all tenants take.
-- KEYS file_bytes config
-- ARGV
--   home text · store or folder
-- ANSWERS overview
--   overview: the bytes that are taken; the most that may be taken; where doors keep files, or '' if none was started
-- KEEPS 9
-- USES clock oom_write file_bytes

return { 'overview', file_bytes.sum_of_periods(k_file_bytes .. home), file_bytes.most_in_home(home),
  redis.call('HGET', k_config, 'files_home') or '' }
