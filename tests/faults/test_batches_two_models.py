"""A batch with lines for two models: the lines for one of them do not wait for the other."""

import json
from typing import Any

import pytest

from shared.clock import RealClock
from shared.settings.settings import Settings
from shared.store import keys
from shared.store.batches.batches import Batches
from shared.store.store import Store
from tests.support.builders import MODEL, advance_clock, heartbeat
from tests.support.fed_batch import WINDOW_MS, the_batch
from web.batches.feeder import feed_once
from web.batches.line_offers import job_id
from web.runtime.context import DoorContext

AWAY = "away"


@pytest.fixture
def door(store: Store, settings: Settings) -> DoorContext:
    """A door that has seen two models. One of them has no live worker any more."""
    heartbeat(store, "w2", model=AWAY)
    advance_clock(store, 10_000)
    heartbeat(store)
    door = DoorContext(settings, store, RealClock())
    door.pools.refresh()
    return door


def a_line(number: int, model: str) -> bytes:
    body: dict[str, Any] = {"model": model, "prompt": f"line {number}", "max_tokens": 5}
    line = {"custom_id": f"c{number}", "method": "POST", "url": "/v1/completions", "body": body}
    return json.dumps(line).encode() + b"\n"


def test_lines_for_a_model_that_is_away_do_not_hold_up_those_for_another(door: DoorContext) -> None:
    models = [AWAY, MODEL, AWAY, MODEL]
    content = b"".join(a_line(number, model) for number, model in enumerate(models, 1))
    door.files.add_part("file-1", "blue", 0, content)
    door.files.close("file-1", "blue", purpose="batch", filename="lines", ttl_s=86_400)
    fields = {"endpoint": "/v1/completions"}
    Batches(door.store.client).create("batch-1", "blue", "file-1", fields, window_ms=WINDOW_MS, ttl_s=3_600)
    feed_once(door)
    feed_once(door)
    assert the_batch(door.store).status == "in_progress"
    admitted = {raw.decode() for raw in door.store.client.zrange(keys.inflight(), 0, -1)}
    assert admitted == {job_id("batch-1", number, 0) for number in (2, 4)}
