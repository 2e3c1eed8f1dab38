"""Each line of a batch is answered exactly once, wherever the processes that feed it are killed."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from shared.clock import RealClock
from shared.store import keys
from shared.store.batches.batches import ENDED, Batches
from shared.store.store import Store
from tests.support.builders import advance_clock, heartbeat
from tests.support.fed_batch import LINES, UNSERVED, WINDOW_MS, a_batch, answered, other_jobs, run_jobs, the_batch
from tests.support.mortal import Killed, Mortal
from web.batches.feeder import feed_once
from web.runtime.context import DoorContext

#: The cases are spread over this many tests.
SHARES = 4


def feed(context: DoorContext, mortal: Mortal, kill_after: int, way: str) -> bool:
    """Feed until the batch has ended; return whether the first process was killed meanwhile.

    `way` is how the batch ends: `completed`, or `cancelled` or `expired` after the first answer.
    """
    store, was_killed, is_told = context.store, False, way == "completed"
    mortal.commands_left = kill_after
    for turn in range(60):
        try:
            feed_once(context)
        except Killed:
            was_killed = True
        # The processes after the first one live on.
        mortal.commands_left, left = None, mortal.commands_left
        batch = the_batch(store)
        if batch.status in ENDED:
            return was_killed
        if not is_told and batch.number("completed"):
            is_told = True
            if way == "cancelled":
                assert Batches(store.client).cancel("batch-1", "blue")
            else:
                advance_clock(store, WINDOW_MS)
        elif way == "completed" or not batch.number("completed"):
            run_jobs(store, is_first=turn < 4)
        # The batches that a killed process had claimed are due again.
        advance_clock(store, context.settings.lease_ms if was_killed else 2_100)
        heartbeat(store)
        store.reap()
        mortal.commands_left = None if was_killed else left
    raise AssertionError(f"the batch has not ended: {batch}")


@pytest.fixture
def context(request: pytest.FixtureRequest, store: Store, settings: Any, tmp_path: Path) -> DoorContext:
    files_dir = str(tmp_path) if request.param == "folder" else ""
    return DoorContext(replace(settings, files_dir=files_dir), store, RealClock())


@pytest.mark.parametrize("share", range(SHARES))
@pytest.mark.parametrize(
    ("context", "way"),
    [("store", "completed"), ("store", "cancelled"), ("store", "expired"), ("folder", "completed")],
    indirect=["context"],
)
def test_each_line_is_answered_once_before_whichever_command_the_first_process_is_killed(
    context: DoorContext, mortal: Mortal, way: str, share: int
) -> None:
    store, kill_after, was_killed = context.store, share, True
    names = [f"c{number}" for number in range(1, LINES + 1)]
    while was_killed:
        store.client.flushall()
        store.configure(context.settings)
        heartbeat(store)
        context.pools.refresh()
        a_batch(context)
        was_killed = feed(context, mortal, kill_after, way)
        where = f"killed before command {kill_after}"
        assert the_batch(store).status == way, where
        done, undone = answered(context)
        assert sorted(done + undone) == names, where
        assert done == sorted(done), where
        if way == "completed":
            assert undone == [f"c{UNSERVED}"], where
        assert not other_jobs(store), where
        assert not store.client.zcard(keys.inflight()), where
        assert not store.client.exists(keys.open_batches(), keys.open_batches_of("blue")), where
        kill_after += SHARES
    assert kill_after > 30
