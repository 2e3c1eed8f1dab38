-- afford: makes a script's later writes work at maxmemory, by a first write that frees.
-- KEYS config
-- Seen on 6.2, 7.0 and Valkey 9.1: ZADD, LPUSH and HSET as first write are refused at maxmemory; after
-- an HDEL, even of a field that is not there, they work. So what ends jobs goes on when memory is full.
redis.call('HDEL', k_config, '')
