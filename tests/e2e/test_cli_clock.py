"""Tests the report of `penstock doctor` about clocks."""

from pathlib import Path

from shared.store.store import Store
from tests.support.builders import advance_clock, heartbeat
from tests.support.program import program


def test_doctor_reports_a_clock_of_the_store_that_was_set_back(store: Store, store_url: str, tmp_path: Path) -> None:
    penstock = program(tmp_path, REDIS_URL=store_url)
    heartbeat(store)
    assert "ahead of the clock" not in penstock("doctor").stderr
    advance_clock(store, -3_600_000)
    heartbeat(store)
    done = penstock("doctor")
    assert done.returncode == 0, done.stdout
    assert "s ahead of the clock of the store's machine" in done.stderr
