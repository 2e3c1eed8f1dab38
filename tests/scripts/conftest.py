"""Fixtures that fill the store's memory, and that set the clock of the store's machine."""

import pytest

from shared.store.store import Store
from tests.support.store_clock import MachineClock


@pytest.fixture
def clock(store: Store) -> MachineClock:
    """The clock of the store's machine, in which no real time passes."""
    return MachineClock(store)
