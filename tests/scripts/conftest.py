"""Fixtures for tests of scripts: a store with preemption, and the clock of the store's machine."""

import pytest

from shared.settings.settings import Settings
from shared.store.store import Store
from tests.support.budgets import MIDDLE_MS, at
from tests.support.builders import hold_clock, reconfigure
from tests.support.contending import QUANTUM_MS
from tests.support.store_clock import MachineClock


@pytest.fixture
def clock(store: Store) -> MachineClock:
    """The clock of the store's machine, in which no real time passes."""
    return MachineClock(store)


@pytest.fixture
def preemptive(store: Store, settings: Settings) -> Store:
    """The store with preemption."""
    reconfigure(store, settings, preemption="on", quantum_ms=QUANTUM_MS)
    return store


@pytest.fixture
def evening(store: Store) -> Store:
    """The store ten seconds before the end of a day in the middle of a month."""
    at(store, MIDDLE_MS)
    return store


@pytest.fixture(autouse=True)
def held_clock(request: pytest.FixtureRequest) -> None:
    """Let the store's time stand still unless a test moves it, so that a slow machine changes no result."""
    moves_itself = "clock" in request.fixturenames or request.node.get_closest_marker("passing_time") is not None
    if "store" in request.fixturenames and not moves_itself:
        hold_clock(request.getfixturevalue("store"))
