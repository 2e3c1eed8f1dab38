"""Reads keys from the store together with the store's time, by which they expire."""

from collections.abc import Callable
from typing import Any

import redis
from redis.client import Pipeline

from shared import store_clock
from shared.store import keys
from shared.store.redis_errors import store_faults


def read_with_time(client: redis.Redis, read: Callable[[Pipeline], object]) -> tuple[Any, int]:
    """Return the answer to the one command that `read` sends, and the store's time in ms, in one round trip.

    Raises StoreUnavailable.
    """
    with store_faults(client), client.pipeline(transaction=False) as pipe:
        read(pipe)
        pipe.time()
        pipe.mget(keys.of_time())
        answer, *time = pipe.execute()
    return answer, store_clock.parse(*time).now_ms
