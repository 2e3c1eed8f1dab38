"""An engine on a thread of its own is woken by what comes, and leaves nothing behind."""

import threading

import pytest

from workers.engine.events import JobSpec
from workers.engine.loop import Engine
from workers.engine.sim import SimBackend
from workers.engine.stats import EngineSettings


class _Served:
    """An engine running on a thread of its own, in real time."""

    def __init__(self, **settings: float) -> None:
        self.events, self.stop, self.told = [], threading.Event(), threading.Condition()
        backend = SimBackend(slots=2, cells=1000, n_ctx=1000, decode_tps=200)
        self.engine = Engine(backend, EngineSettings(**settings), self._emit)
        self.thread = threading.Thread(target=self.engine.run, args=(self.stop,))
        self.thread.start()

    def _emit(self, event) -> None:
        with self.told:
            self.events.append(event)
            self.told.notify()

    def submit(self, key: str, max_tokens: int) -> None:
        payload = {"prompt": "a", "max_tokens": max_tokens}
        self.engine.submit(self.engine.prepare(JobSpec(key, "blue", payload, max_tokens, 1e12)))

    def wait_for(self, condition) -> None:
        with self.told:
            assert self.told.wait_for(lambda: condition(self.events), timeout=10)

    def end(self) -> None:
        self.stop.set()
        self.engine.wake()
        self.thread.join(timeout=10)
        assert not self.thread.is_alive()


@pytest.fixture
def served():
    served = _Served()
    yield served
    served.end()


def _outcomes(events):
    return {event.key: event.outcome for event in events if hasattr(event, "outcome")}


def test_a_running_engine_is_woken_by_a_job_and_by_a_cancel(served):
    served.submit("a", 3)
    served.wait_for(lambda events: _outcomes(events) == {"a": "succeeded"})
    served.submit("b", 900)
    served.wait_for(lambda events: any(event.key == "b" for event in events))
    served.engine.cancel("b")
    served.wait_for(lambda events: _outcomes(events).get("b") == "canceled")


def test_stopping_a_running_engine_drops_what_is_left(served):
    served.submit("a", 900)
    served.wait_for(bool)
    served.end()
    assert _outcomes(served.events) == {"a": "dropped"}


def test_an_idle_engine_waits_for_company_when_it_is_told_to():
    served = _Served(batch_timeout_ms=60_000)
    try:
        served.submit("a", 2)
        served.submit("b", 2)
        served.wait_for(lambda events: _outcomes(events) == {"a": "succeeded", "b": "succeeded"})
    finally:
        served.end()
