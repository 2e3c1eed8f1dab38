"""A fixture that fills the store's memory for as long as a test needs it."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

import pytest
import redis


@pytest.fixture
def memory_is_full(redis_client: redis.Redis) -> Callable[[], AbstractContextManager[None]]:
    """Return a context manager inside which the store has reached `maxmemory`; it restores the limit at its end."""

    @contextmanager
    def full() -> Iterator[None]:
        before = redis_client.config_get("maxmemory")["maxmemory"]
        redis_client.config_set("maxmemory", 1)
        try:
            yield
        finally:
            redis_client.config_set("maxmemory", before)

    return full
