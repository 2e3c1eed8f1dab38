-- oom_write: lets the writes of a script succeed when the store has reached maxmemory.
-- KEYS config
-- This was observed on Redis 6.2, 7.0 and Valkey 9.1: when the store has reached maxmemory, the server refuses ZADD,
-- LPUSH and HSET as a script's first write, but accepts them after an HDEL, even one of a field that does not exist.
-- With the HDEL below, scripts that end jobs work even when memory is full.
redis.call('HDEL', k_config, '')
