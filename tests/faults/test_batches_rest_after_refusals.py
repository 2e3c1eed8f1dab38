"""After a refusal, a batch whose jobs end quickly is due again before its part of the queue is empty."""

import json
from typing import Any

import pytest

from shared.clock import RealClock
from shared.jobs.outcomes import Outcome, Refusal
from shared.settings.settings import Settings
from shared.store import keys
from shared.store.batches.batches import Batches
from shared.store.store import Store
from tests.support.builders import MODEL, advance_clock, an_ending, claim, heartbeat, hold_clock
from tests.support.fed_batch import WINDOW_MS
from web.api.refusals import Yield
from web.batches import line_offers
from web.batches.feeder import feed_once
from web.runtime.context import DoorContext

LINES, ADMITTED, HINT_MS = 40, 8, 9_000


@pytest.fixture
def door(store: Store, settings: Settings, monkeypatch: pytest.MonkeyPatch) -> DoorContext:
    """A door that admits eight jobs at once and tells all others to come back much later."""
    hold_clock(store)
    heartbeat(store)
    door, offers = DoorContext(settings, store, RealClock()), line_offers.offer
    door.pools.refresh()

    def offer(context: DoorContext, caller: Any, generation: Any) -> Any:
        if store.client.zcard(keys.inflight()) < ADMITTED:
            return offers(context, caller, generation)
        return Yield(503, {"reason": Refusal.INFLIGHT_FULL.value, "retry_hint_ms": HINT_MS}, {})

    monkeypatch.setattr(line_offers, "offer", offer)
    return door


def a_batch(door: DoorContext) -> None:
    body = {"model": MODEL, "prompt": "a line", "max_tokens": 5}
    lines = [
        json.dumps({"custom_id": f"c{number}", "method": "POST", "url": "/v1/completions", "body": body}).encode()
        for number in range(LINES)
    ]
    door.files.add_part("file-1", "blue", 0, b"\n".join(lines))
    door.files.close("file-1", "blue", purpose="batch", filename="lines", ttl_s=86_400)
    fields = {"endpoint": "/v1/completions"}
    Batches(door.store.client).create("batch-1", "blue", "file-1", fields, window_ms=WINDOW_MS, ttl_s=3_600)


def end_jobs(store: Store, count: int) -> None:
    heartbeat(store)
    for job in claim(store, room=count) if count else []:
        store.settle(an_ending(job.held, Outcome.SUCCEEDED), "w1")


def due_in_ms(store: Store) -> int:
    """Return in how many ms the batch is due. The clock stands still."""
    due = store.client.zscore(keys.open_batches(), "batch-1")
    assert due is not None
    return int(due) - int((store.client.get("penstock:clock") or b"").removeprefix(b"="))


def test_a_batch_refills_its_part_of_the_queue_as_fast_as_its_jobs_end(door: DoorContext) -> None:
    store = door.store
    a_batch(door)
    # One pass validates the lines, and one offers them.
    feed_once(door)
    feed_once(door)
    rests_ms = [due_in_ms(store)]
    for ended in (4, 4, 4, 2, 0):
        end_jobs(store, ended)
        advance_clock(store, due_in_ms(store))
        feed_once(door)
        assert store.client.zcard(keys.inflight()) == ADMITTED
        rests_ms.append(due_in_ms(store))
    assert rests_ms == [2_000, 1_000, 500, 250, 250, 2_000]
