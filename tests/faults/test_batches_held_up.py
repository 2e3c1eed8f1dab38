"""A process that is held up for longer than its lease, while another one runs the whole batch, changes nothing."""

import threading
from collections.abc import Iterator
from typing import Any

import pytest
import redis

from shared.clock import RealClock
from shared.settings.settings import Settings
from shared.store import keys
from shared.store.batches.batches import ENDED
from shared.store.connection import open_client
from shared.store.store import Store
from tests.support.builders import advance_clock, contents, heartbeat
from tests.support.fed_batch import a_batch, answered, other_jobs, run_jobs, the_batch
from web.batches.feeder import feed_once
from web.runtime.context import DoorContext

#: The cases are spread over this many tests.
SHARES = 3


class HeldUp:
    """Lets something else happen before one command of a client.

    Commands of other threads than the test's, which read the store early, are not counted.
    """

    def __init__(self, client: redis.Redis, patch: pytest.MonkeyPatch) -> None:
        self.commands_left: int | None = None
        self.meanwhile = lambda: None
        execute, counted = client.execute_command, threading.current_thread()

        def execute_after_the_rest(*arguments: Any, **options: Any) -> Any:
            if self.commands_left is not None and threading.current_thread() is counted:
                self.commands_left -= 1
                if self.commands_left < 0:
                    self.commands_left = None
                    self.meanwhile()
            return execute(*arguments, **options)

        patch.setattr(client, "execute_command", execute_after_the_rest)


@pytest.fixture
def other(store_url: str, store: Store, settings: Settings) -> Iterator[DoorContext]:
    """Another door on the same store."""
    with open_client(store_url, name="penstock-other") as client:
        yield DoorContext(settings, Store(client), RealClock())


def lasting(store: Store) -> dict[str, bytes]:
    """Return everything but results of jobs, which a process may still erase when it has stored their answers."""
    erased = (keys.result(""), keys.events(""), keys.kept(""))
    return {key: value for key, value in contents(store).items() if not key.startswith(erased)}


def run_whole_batch(door: DoorContext) -> None:
    """Let a door run the batch to its end after the lease of the process that has claimed it."""
    advance_clock(door.store, door.settings.lease_ms)
    for turn in range(60):
        heartbeat(door.store)
        door.pools.refresh()
        feed_once(door)
        if the_batch(door.store).status in ENDED:
            return
        run_jobs(door.store, is_first=turn < 4)
        advance_clock(door.store, 2_100)
        heartbeat(door.store)
        door.store.reap()
    raise AssertionError(f"the batch has not ended: {the_batch(door.store)}")


@pytest.mark.parametrize("turn", range(1, 4))
@pytest.mark.parametrize("share", range(SHARES))
def test_a_door_that_is_held_up_before_any_command_has_no_line_computed_again(
    store: Store,
    settings: Settings,
    other: DoorContext,
    monkeypatch: pytest.MonkeyPatch,
    turn: int,
    share: int,
) -> None:
    held_up, after = HeldUp(store.client, monkeypatch), share
    door, was_held_up = DoorContext(settings, store, RealClock()), True
    while was_held_up:
        store.client.flushall()
        store.configure(settings)
        heartbeat(store)
        door.pools.refresh()
        a_batch(door)
        for earlier in range(turn - 1):
            feed_once(door)
            run_jobs(store, is_first=earlier < 1)
            advance_clock(store, 2_100)
            heartbeat(store)
            store.reap()
        then: list[tuple[Any, Any]] = []

        def meanwhile(then: list[tuple[Any, Any]] = then) -> None:
            run_whole_batch(other)
            then.append((lasting(store), answered(other)))

        held_up.meanwhile, held_up.commands_left = meanwhile, after
        feed_once(door)
        was_held_up, held_up.commands_left = bool(then), None
        if was_held_up:
            assert lasting(store) == then[0][0], f"held up before command {after} of turn {turn}"
            assert (answered(door), other_jobs(store)) == (then[0][1], set())
        after += SHARES
