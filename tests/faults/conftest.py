"""A stage for each test: its own store, and workers whose lease is a second."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.processes import Stage

#: Leases of a second, so that what is lost is taken back within the test; 8 slots of 100 words a second; a door
#: without foresight, so that every job of a test is taken.
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
        stage.still_sound()
