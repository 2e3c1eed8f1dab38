"""Situations in which alerts must fire, and what a test does in each until they do."""

import os
import select
import signal
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

from shared.store import keys
from tests.support.boards.of_state import connect
from tests.support.boards.scene import address_of
from tests.support.boards.watched import SLOTS, Watched
from tests.support.builders import heartbeat
from tests.support.ports import free_port
from tests.support.processes import wait_for

#: Alerts that no situation causes, each with the reason.
WITHOUT_SITUATION = {
    "PenstockCellAway": "needs several cells; tests/unit/deploy/alerts.yml has such a situation",
    "PenstockHintsWrong": "more than 50 clients must be told when to come back, wait until then, and be refused again",
    "PenstockRetrievalFallsBack": "needs a database of collections; tests/unit/deploy/alerts.yml has such a situation",
    "PenstockTenantBelowShare": "a tenant must be queued for minutes while others get its share, which turns prevent",
}


#: Causes what an alert looks at. It is called again and again until the alert fires.
Act = Callable[[Watched], None]


def _nothing_more(_: Watched) -> None:
    """Do nothing: the alert fires because of the processes that the situation started."""


@dataclass(frozen=True)
class Situation:
    """Something that happens, and the alerts that fire because of it, each with what a client does meanwhile."""

    name: str
    alerts: Mapping[str, Act]
    lasts: Callable[[Watched], AbstractContextManager[Any]] = field(default=lambda _: nullcontext())


def _guess_keys(it: Watched) -> None:
    for number in range(20):
        headers = {"Authorization": f"Bearer psk_wrong{number}"}
        assert it.http.get(f"{it.door}/v1/queue", headers=headers).status_code in {401, 429}


def _open_too_many_requests(it: Watched) -> None:
    """Send more requests that wait than a tenant may have open, and give up."""
    job = wait_for(lambda: it.offer("red", max_tokens=60_000).get("id"), "an admitted job", timeout_s=60)
    lines = [f"GET /v1/jobs/{job}?wait_ms=60000 HTTP/1.1", f"Host: {address_of(it.door)}"]
    lines += [f"Authorization: {it.headers('red')['Authorization']}"]
    request = "".join(f"{line}\r\n" for line in (*lines, "")).encode()
    with ExitStack() as stack:
        waiting = [stack.enter_context(connect(it.door)) for _ in range(80)]
        for one in waiting:
            one.sendall(request)
        wait_for(lambda: len(select.select(waiting, [], [], 0)[0]) >= 72, "requests that are turned away", timeout_s=60)
    it.stage.store.cancel(job, tenant="red")
    it.stage.ended(job, timeout_s=60)


def _send_too_often(it: Watched) -> None:
    for _ in range(100):
        it.offer("limited")


def _fail(it: Watched) -> None:
    # The engine sim has no logprobs, which only the worker finds out.
    for _ in range(10):
        it.offer("red", logprobs=1)


def _need_too_long(it: Watched) -> None:
    for _ in range(10):
        it.offer("red", max_tokens=2_000, deadline_ms=300)


def _use_the_budget(it: Watched) -> None:
    it.offer("green", max_tokens=100)


def _spoil(it: Watched) -> None:
    it.stage.client.hset(keys.stats(), "offered_tokens", "abc")
    it.offer("blue")


@contextmanager
def _a_model_is_gone(it: Watched) -> Iterator[None]:
    """Act as a worker of another model, which ends."""
    heartbeat(it.stage.store, "w0", model="other")
    it.stage.store.farewell("w0", "other")
    yield


def _wait_for_the_store(it: Watched) -> None:
    for _ in range(3):
        it.stage.client.client_pause(300)
        it.offer("blue")


@contextmanager
def _the_clock_is_set_back(it: Watched) -> Iterator[None]:
    it.stage.client.set(keys.clock(), -30_000)
    yield
    it.stage.client.delete(keys.clock())


@contextmanager
def _the_store_stands_still(it: Watched) -> Iterator[None]:
    os.kill(it.stage.embedded.pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(it.stage.embedded.pid, signal.SIGCONT)
    wait_for(lambda: it.stage.view(it.worker), "a live worker", timeout_s=60)


def _offer_one(it: Watched) -> None:
    it.offer("blue")


@contextmanager
def _worker_and_gate_are_killed(it: Watched) -> Iterator[None]:
    """Kill them while jobs run and are queued, and after one whose webhook nobody receives has ended."""
    told = it.offer("blue", callback_url=f"http://127.0.0.1:{free_port()}/hook")["id"]
    it.stage.ended(told, timeout_s=60)
    running = [it.offer("blue", max_tokens=60_000, deadline_ms=600_000)["id"] for _ in range(SLOTS)]
    it.stage.wait_until_running(*running, timeout_s=60)
    it.worker.kill()
    it.gate.kill()
    yield


def _time_passes(ms: int) -> Callable[[Watched], AbstractContextManager[Any]]:
    """Move the store's time forward."""
    return lambda it: nullcontext(it.stage.client.incrby(keys.clock(), ms))


#: In this order, because one offer of a hundred must be slow, and later there are thousands of offers.
SITUATIONS = (
    Situation(
        "the store is slow, and its clock is set back",
        {"PenstockStoreSlow": _wait_for_the_store, "PenstockClockAhead": _nothing_more},
        _the_clock_is_set_back,
    ),
    Situation(
        "clients and another program misbehave, and a model is retired",
        {
            "PenstockKeysGuessed": _guess_keys,
            "PenstockConnectionsTurnedAway": _open_too_many_requests,
            "PenstockRefusesHalf": _send_too_often,
            "PenstockJobsFail": _fail,
            "PenstockPromisesBroken": _need_too_long,
            "PenstockBudgetNearlyUsed": _use_the_budget,
            "PenstockStoreSpoiled": _spoil,
            "PenstockModelWithoutWorker": _nothing_more,
        },
        _a_model_is_gone,
    ),
    Situation(
        "the store stands still",
        {"PenstockStoreAway": _offer_one, "PenstockFleetUnknown": _nothing_more},
        _the_store_stands_still,
    ),
    Situation(
        "the worker and the gate are killed",
        {
            "PenstockWorkerDown": _nothing_more,
            "PenstockDoorDown": _nothing_more,
            "PenstockNoWorker": _offer_one,
            "PenstockLeasesReclaimed": _nothing_more,
        },
        _worker_and_gate_are_killed,
    ),
    Situation("seven minutes pass", {"PenstockOldestJobWaits": _nothing_more}, _time_passes(420_000)),
    Situation("ten more minutes pass", {"PenstockWebhooksLate": _nothing_more}, _time_passes(600_000)),
)
