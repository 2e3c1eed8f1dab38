-- farewell: a worker that stops takes itself off the books, so that nobody counts on its slots.
-- KEYS workers pool worker bell
-- ARGV
--   worker text · who stops, holding nothing any more
--   slug text · its model as it stands in keys
-- ANSWERS gone
-- KEEPS 9
-- USES clock afford books live

redis.call('ZREM', k_workers, worker)
redis.call('ZREM', k_pool .. slug, worker)
redis.call('DEL', k_worker .. worker, k_bell .. worker)
count_live_slots(now_ms)
gather_rates(slug, now_ms)
return { 'gone' }
