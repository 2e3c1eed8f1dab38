"""Tests of an engine on its own thread: jobs and cancels wake it, and a stop drops the jobs that are left."""

import threading

import pytest

from workers.engine.events import JobSpec
from workers.engine.loop import Engine
from workers.engine.sim import SimBackend
from workers.engine.stats import EngineSettings


class _RunningEngine:
    """An engine that runs on its own thread, in real time."""

    def __init__(self, **settings: float) -> None:
        self.events, self.stop, self.reported = [], threading.Event(), threading.Condition()
        backend = SimBackend(slots=2, cells=1000, n_ctx=1000, decode_tps=200)
        self.engine = Engine(backend, EngineSettings(**settings), self._emit)
        self.thread = threading.Thread(target=self.engine.run, args=(self.stop,))
        self.thread.start()

    def _emit(self, event) -> None:
        with self.reported:
            self.events.append(event)
            self.reported.notify()

    def submit(self, key: str, max_tokens: int) -> None:
        payload = {"prompt": "a", "max_tokens": max_tokens}
        self.engine.submit(self.engine.prepare(JobSpec(key, "blue", payload, max_tokens, 1e12)))

    def wait_for(self, condition) -> None:
        with self.reported:
            assert self.reported.wait_for(lambda: condition(self.events), timeout=10)

    def end(self) -> None:
        self.stop.set()
        self.engine.wake()
        self.thread.join(timeout=10)
        assert not self.thread.is_alive()


@pytest.fixture
def running():
    running = _RunningEngine()
    yield running
    running.end()


def _outcomes(events):
    return {event.key: event.outcome for event in events if hasattr(event, "outcome")}


def test_a_running_engine_is_woken_by_a_job_and_by_a_cancel(running):
    running.submit("a", 3)
    running.wait_for(lambda events: _outcomes(events) == {"a": "succeeded"})
    running.submit("b", 900)
    running.wait_for(lambda events: any(event.key == "b" for event in events))
    running.engine.cancel("b")
    running.wait_for(lambda events: _outcomes(events).get("b") == "canceled")


def test_stopping_a_running_engine_drops_the_jobs_that_are_left(running):
    running.submit("a", 900)
    running.wait_for(bool)
    running.end()
    assert _outcomes(running.events) == {"a": "dropped"}


def test_an_idle_engine_with_a_batch_timeout_waits_for_a_second_job():
    running = _RunningEngine(batch_timeout_ms=60_000)
    try:
        running.submit("a", 2)
        running.submit("b", 2)
        running.wait_for(lambda events: _outcomes(events) == {"a": "succeeded", "b": "succeeded"})
    finally:
        running.end()
