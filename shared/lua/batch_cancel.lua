-- batch_cancel: asks the process that feeds a batch to end it.
-- KEYS batch_record
-- ARGV
--   id text · the batch
--   tenant text · the tenant that must own the batch
-- ANSWERS asked gone
--   asked: the batch's status, which does not change once its files are being written
-- KEEPS 9
-- USES clock oom_write mark

local saved = redis.call('HMGET', k_batch_record .. id, 'tenant', 'status')
if saved[1] ~= tenant then
  return { 'gone' }
end
if saved[2] ~= 'validating' and saved[2] ~= 'in_progress' then
  return { 'asked', saved[2] or '' }
end
redis.call('HSET', k_batch_record .. id, 'status', 'cancelling', 'cancelling_ms', whole(now_ms))
return { 'asked', 'cancelling' }
