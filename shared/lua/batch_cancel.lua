-- batch_cancel: asks the process that feeds a batch to end it.
-- KEYS batch_record
-- ARGV
--   id text · the batch
--   tenant text · the tenant that must own the batch
-- ANSWERS asked gone
--   asked: the batch's status, which does not change once its files are being written
-- KEEPS 9
-- USES clock oom_write mark

local saved = read_fields(k_batch_record .. id, { 'tenant', 'status' })
if saved.tenant ~= tenant then
  return { 'gone' }
end
if saved.status ~= 'validating' and saved.status ~= 'in_progress' then
  return { 'asked', saved.status or '' }
end
redis.call('HSET', k_batch_record .. id, 'status', 'cancelling', 'cancelling_ms', whole(now_ms))
return { 'asked', 'cancelling' }
