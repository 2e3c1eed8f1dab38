"""Batches in two cells that one process feeds: where it is killed, each line is answered once, in its own cell."""

from typing import Any

import pytest

from shared.cells.stored_ids import cell_of_stored_id
from shared.store import keys
from shared.store.batches.batches import ENDED
from shared.store.store import Store
from tests.support.builders import advance_clock, heartbeat
from tests.support.cells_door import cells_door
from tests.support.fed_batch import LINES, UNSERVED, a_batch, answered, run_jobs, the_batch
from tests.support.mortal import Killed, Mortal
from web.batches.feeder import feed_once

NAMES = [f"c{number}" for number in range(1, LINES + 1)]


@pytest.mark.parametrize("kill_after", [2, 9, 16, 23])
def test_each_line_of_two_cells_is_answered_once_in_its_cell_although_the_process_that_feeds_both_is_killed(
    store: Store, settings: Any, store_url: str, monkeypatch: pytest.MonkeyPatch, kill_after: int
) -> None:
    with cells_door(store, settings, store_url) as door:
        stores = {name: door.stores[name] for name in ("b", "c")}
        fed = {name: door.context.cells.named(name) for name in stores}
        for name, cell in fed.items():
            heartbeat(stores[name])
            cell.pools.refresh()
            a_batch(cell)
        mortal, was_killed = Mortal(fed["b"].store.client, monkeypatch), False
        mortal.commands_left = kill_after
        for turn in range(60):
            open_cells = [name for name, each in stores.items() if the_batch(each).status not in ENDED]
            if not open_cells:
                break
            for name in open_cells:
                try:
                    feed_once(fed[name])
                except Killed:
                    # Another process takes its place.
                    was_killed, mortal.commands_left = True, None
                run_jobs(stores[name], is_first=turn < 4)
                advance_clock(stores[name], settings.lease_ms if was_killed else 2_100)
                heartbeat(stores[name])
                stores[name].reap()
        mortal.commands_left = None
        assert was_killed
        for name, cell in fed.items():
            done, undone = answered(cell)
            assert (sorted(done + undone), undone) == (NAMES, [f"c{UNSERVED}"])
            assert cell_of_stored_id(the_batch(stores[name]).fields["output_file"]) == name
            jobs = stores[name].client.zrange(keys.jobs("blue"), 0, -1)
            assert jobs
            assert all(job.decode().startswith(f"{name}-") for job in jobs)
            assert not stores[name].client.zcard(keys.inflight())
        assert store.snapshot().waiting == 0
