"""A batch with lines that are refused again and again: the other lines of their model do not wait for them."""

import json
from typing import Any

import pytest

from shared.clock import RealClock
from shared.jobs.outcomes import Refusal
from shared.settings.settings import Settings
from shared.store import keys
from shared.store.batches.batches import Batches
from shared.store.store import Store
from tests.support.builders import MODEL, advance_clock, heartbeat
from tests.support.fed_batch import WINDOW_MS, the_batch
from web.api.refusals import Yield
from web.batches import line_offers
from web.batches.feeder import feed_once
from web.batches.line_offers import job_id
from web.runtime.context import DoorContext

#: The first lines are refused whenever they are offered, and those after them are admitted.
REFUSED, LINES = 20, 22
PROMPT = "of no use"


@pytest.fixture
def door(store: Store, settings: Settings) -> DoorContext:
    heartbeat(store)
    door = DoorContext(settings, store, RealClock())
    door.pools.refresh()
    return door


def a_line(number: int) -> bytes:
    prompt = PROMPT if number <= REFUSED else f"line {number}"
    body: dict[str, Any] = {"model": MODEL, "prompt": prompt, "max_tokens": 5}
    line = {"custom_id": f"c{number}", "method": "POST", "url": "/v1/completions", "body": body}
    return json.dumps(line).encode() + b"\n"


@pytest.mark.parametrize(
    ("reason", "turns"), [(Refusal.DEADLINE_UNMEETABLE, 4), (Refusal.TENANT_TOKENS_FULL, REFUSED + 2)]
)
def test_lines_that_are_refused_again_and_again_do_not_hold_up_the_others(
    door: DoorContext, monkeypatch: pytest.MonkeyPatch, reason: Refusal, turns: int
) -> None:
    store, offers = door.store, line_offers.offer

    def offer(context: DoorContext, caller: Any, generation: Any) -> Any:
        if generation.payload["prompt"] != PROMPT:
            return offers(context, caller, generation)
        return Yield(503, {"reason": reason.value, "retry_hint_ms": 50}, {})

    monkeypatch.setattr(line_offers, "offer", offer)
    door.files.add_part("file-1", "blue", 0, b"".join(a_line(number) for number in range(1, LINES + 1)))
    door.files.close("file-1", "blue", purpose="batch", filename="lines", ttl_s=86_400)
    fields = {"endpoint": "/v1/completions"}
    Batches(store.client).create("batch-1", "blue", "file-1", fields, window_ms=WINDOW_MS, ttl_s=3_600)
    # One turn validates the lines. Before each other one, all lines that were refused are due again.
    for _ in range(turns):
        feed_once(door)
        advance_clock(store, 1_100)
        heartbeat(store)
    assert the_batch(store).status == "in_progress"
    inflight = {raw.decode() for raw in store.client.zrange(keys.inflight(), 0, -1)}
    assert inflight == {job_id("batch-1", number, 0) for number in range(REFUSED + 1, LINES + 1)}
