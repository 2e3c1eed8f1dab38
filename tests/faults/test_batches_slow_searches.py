"""Batches whose lines search for passages in a slow database: other batches have their turn in between."""

import json
from dataclasses import replace
from typing import Any

import pytest

from shared.clock import ManualClock
from shared.settings.settings import Settings
from shared.store import keys
from shared.store.batches.batches import Batches
from shared.store.store import Store
from tests.support.builders import MODEL, heartbeat
from tests.support.fed_batch import WINDOW_MS
from tests.support.passages import FakeDatabase, a_collection, a_passage
from web.batches.feeder import feed_once
from web.batches.line_offers import job_id
from web.runtime.context import DoorContext

#: How long each search takes, in seconds.
SEARCH_S = 0.9


class SlowDatabase(FakeDatabase):
    """Each of its searches takes SEARCH_S: longer than the budget of a request, and shorter than that of a line."""

    def __init__(self, clock: ManualClock) -> None:
        super().__init__(a_collection())
        self.passages = (a_passage(0),)
        self._clock = clock

    def search(self, *args: Any, **kwargs: Any) -> Any:
        self._clock.advance(SEARCH_S)
        return super().search(*args, **kwargs)


@pytest.fixture
def door(store: Store, settings: Settings) -> DoorContext:
    heartbeat(store)
    clock = ManualClock()
    door = DoorContext(replace(settings, max_queue_size=100, max_inflight=100), store, clock)
    door.process.database = SlowDatabase(clock)  # type: ignore[assignment]  # has the methods that the door calls
    door.pools.refresh()
    return door


def a_batch(door: DoorContext, name: str, lines: int, **fields: Any) -> None:
    content = b""
    for number in range(lines):
        messages = [{"role": "user", "content": f"line {number}"}]
        body = {"model": MODEL, "messages": messages, "max_tokens": 5} | fields
        line = {"custom_id": f"c{number}", "method": "POST", "url": "/v1/chat/completions", "body": body}
        content += json.dumps(line).encode() + b"\n"
    door.files.add_part(f"file-{name}", "blue", 0, content)
    door.files.close(f"file-{name}", "blue", purpose="batch", filename="lines", ttl_s=86_400)
    given = {"endpoint": "/v1/chat/completions"}
    Batches(door.store.client).create(name, "blue", f"file-{name}", given, window_ms=WINDOW_MS, ttl_s=3_600)


def test_a_batch_that_searches_slowly_gives_the_next_batch_its_turn_after_two_seconds(door: DoorContext) -> None:
    a_batch(door, "slow", 6, retrieval={"collection": "handbook"})
    a_batch(door, "quick", 2)
    admitted: list[set[str]] = []
    for _ in range(6):
        feed_once(door)
        admitted.append({raw.decode() for raw in door.store.client.zrange(keys.inflight(), 0, -1)})
    slow, quick = ({job_id(name, number, 0) for number in range(1, 7)} for name in ("slow", "quick"))
    assert [len(ids & slow) for ids in admitted] == [0, 0, 3, 3, 6, 6]
    assert [len(ids & quick) for ids in admitted] == [0, 0, 0, 2, 2, 2]
