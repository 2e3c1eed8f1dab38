"""A store whose memory is full, for as long as a test says."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

import pytest
import redis


@pytest.fixture
def memory_is_full(redis_client: redis.Redis) -> Callable[[], AbstractContextManager[None]]:
    """A context in which the store has reached `maxmemory`; afterwards it has as much as before."""

    @contextmanager
    def full() -> Iterator[None]:
        before = redis_client.config_get("maxmemory")["maxmemory"]
        redis_client.config_set("maxmemory", 1)
        try:
            yield
        finally:
            redis_client.config_set("maxmemory", before)

    return full
