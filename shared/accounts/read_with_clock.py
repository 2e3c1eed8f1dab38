"""Reads keys from the store together with the store's time, which decides whether they have expired."""

from collections.abc import Callable
from typing import Any

import redis
from redis.client import Pipeline

from shared import store_clock
from shared.errors import StoreUnavailable
from shared.store import keys
from shared.store.redis_errors import store_faults


def read_with_time(client: redis.Redis, read: Callable[[Pipeline], object]) -> tuple[Any, int]:
    """Return the answer to the one command that `read` sends, and the store's time in ms, in one round trip.

    Raises StoreUnavailable, also if another program has replaced the key by one of another type.
    """
    with store_faults(client), client.pipeline(transaction=False) as pipe:
        read(pipe)
        pipe.time()
        pipe.mget(keys.of_time())
        answer, *time = pipe.execute(raise_on_error=False)
        if isinstance(answer, redis.ResponseError) and "WRONGTYPE" in str(answer):
            raise StoreUnavailable("the store's list of keys was replaced by another program: see penstock doctor")
        for reply in (answer, *time):
            if isinstance(reply, Exception):
                raise reply
    return answer, store_clock.parse(*time).now_ms
