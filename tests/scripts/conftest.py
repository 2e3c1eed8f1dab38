"""Fixtures that fill the store's memory, and that set the clock of the store's machine."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

import pytest
import redis

from shared.store.store import Store
from tests.support.store_clock import MachineClock


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


@pytest.fixture
def clock(store: Store) -> MachineClock:
    """The clock of the store's machine, in which no real time passes."""
    return MachineClock(store)
