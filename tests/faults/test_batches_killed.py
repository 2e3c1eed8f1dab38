"""Each line of a batch is answered exactly once, wherever the processes that feed it are killed."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import redis

from shared.clock import RealClock
from shared.jobs.outcomes import Outcome
from shared.store import keys
from shared.store.batches.batches import ENDED, Batches, StoredBatch
from shared.store.store import Store
from tests.support.builders import MODEL, advance_clock, an_ending, claim, heartbeat
from web.operations.batches.feeder import feed_once
from web.operations.batches.open_lines import job_id
from web.runtime.context import DoorContext, make_door_context

LINES = 4
#: The line whose first job expires, and the line that no model serves.
EXPIRING, UNSERVED = 2, 3
#: The cases are spread over this many tests.
SHARES = 4
#: The completion window of the batch, in ms.
WINDOW_MS = 1_200_000


class Killed(BaseException):
    """The process ends before its next command to the store."""


class Mortal:
    """Lets the process that uses a client end before one of its commands."""

    def __init__(self, client: redis.Redis, patch: pytest.MonkeyPatch) -> None:
        self.commands_left: int | None = None
        execute = client.execute_command

        def execute_if_alive(*arguments: Any, **options: Any) -> Any:
            if self.commands_left is not None:
                self.commands_left -= 1
                if self.commands_left < 0:
                    raise Killed
            return execute(*arguments, **options)

        patch.setattr(client, "execute_command", execute_if_alive)


@pytest.fixture
def mortal(redis_client: redis.Redis, monkeypatch: pytest.MonkeyPatch) -> Iterator[Mortal]:
    mortal = Mortal(redis_client, monkeypatch)
    yield mortal
    mortal.commands_left = None


def a_batch(context: DoorContext) -> None:
    files, batches = context.files, Batches(context.store.client)
    lines = []
    for number in range(1, LINES + 1):
        body = {"model": MODEL if number != UNSERVED else "nobody", "prompt": f"line {number}", "max_tokens": 5}
        if number == EXPIRING:
            body["deadline_ms"] = 2_000
        line = {"custom_id": f"c{number}", "method": "POST", "url": "/v1/completions", "body": body}
        lines.append(json.dumps(line).encode() + b"\n")
    files.add_part("file-1", "blue", 0, b"".join(lines))
    files.close("file-1", "blue", purpose="batch", filename="lines", ttl_s=86_400)
    fields = {"endpoint": "/v1/completions"}
    created = batches.create("batch-1", "blue", "file-1", fields, window_ms=WINDOW_MS, ttl_s=3_600)
    assert isinstance(created, StoredBatch)


def the_batch(store: Store) -> StoredBatch:
    found = Batches(store.client).find("batch-1", "blue")
    assert found is not None
    return found


def run_jobs(store: Store, *, is_first: bool) -> None:
    """Let a worker run what is queued; the first job of the line EXPIRING waits until it expires."""
    heartbeat(store)
    for job in claim(store, room=2):
        if is_first and f"line {EXPIRING}" in json.dumps(job.payload):
            store.release("w1", [job.held])
            advance_clock(store, 2_500)
            heartbeat(store)
            store.reap()
        else:
            store.settle(an_ending(job.held, Outcome.SUCCEEDED), "w1")


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
        # What a killed process had claimed is due again.
        advance_clock(store, context.settings.lease_ms if was_killed else 2_100)
        heartbeat(store)
        store.reap()
        mortal.commands_left = None if was_killed else left
    raise AssertionError(f"the batch has not ended: {batch}")


def answered(context: DoorContext) -> tuple[list[str], list[str]]:
    """Return the custom_ids in the output file and in the file of errors."""
    names = []
    for kind in ("output_file", "error_file"):
        file = context.files.find(the_batch(context.store).fields[kind], "blue")
        assert file is not None
        content = b"".join(context.files.read(file)).splitlines()
        names.append([json.loads(line)["custom_id"] for line in content])
    return names[0], names[1]


@pytest.fixture(params=["store", "folder"])
def context(request: pytest.FixtureRequest, store: Store, settings: Any, tmp_path: Path) -> DoorContext:
    files_dir = str(tmp_path) if request.param == "folder" else ""
    return make_door_context(replace(settings, files_dir=files_dir), store, RealClock())


@pytest.mark.parametrize("share", range(SHARES))
@pytest.mark.parametrize("way", ["completed", "cancelled", "expired"])
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
        # Each line has one job, and the one whose jobs expire one at a time.
        jobs = {raw.decode() for raw in store.client.zrange(keys.jobs("blue"), 0, -1)}
        first = {job_id("batch-1", number, 0) for number in range(1, LINES + 1)}
        assert jobs - first <= {job_id("batch-1", EXPIRING, attempt) for attempt in range(1, 30)}, where
        assert not store.client.zcard(keys.inflight()), where
        assert not store.client.exists(keys.open_batches(), keys.open_batches_of("blue")), where
        kill_after += SHARES
    assert kill_after > 30
