"""Fixtures for fault tests: each test gets its own store and workers, with leases of one second."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from tests.support.mortal import Mortal
from tests.support.processes import Stage

#: Leases of one second, so that lost jobs are taken back within a test; 8 slots of 100 words a second; admission by
#: bounds only, so that every job of a test is admitted.
FAST = {
    "PENSTOCK_ENGINE": "sim",
    "PENSTOCK_ADMISSION": "bounds",
    "PENSTOCK_LEASE_MS": "1000",
    "PENSTOCK_MAX_BATCH_SIZE": "8",
    "PENSTOCK_SIM_DECODE_TPS": "100",
    "PENSTOCK_SIM_PREFILL_TPS": "10000",
}


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    with Stage(tmp_path, **FAST) as stage:
        yield stage
        stage.assert_sound()


@pytest.fixture
def mortal(redis_client: redis.Redis, monkeypatch: pytest.MonkeyPatch) -> Iterator[Mortal]:
    mortal = Mortal(redis_client, monkeypatch)
    yield mortal
    mortal.commands_left = None
