"""One worker's rounds in one thread: a real store behind a line that may be cut, a sim engine, a clock held here."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import redis

from shared.clock import HeldClock
from shared.errors import StoreUnavailable
from shared.jobs.states import JobState
from shared.settings.settings import Settings, load
from shared.store import keys, scripts
from shared.store.store import Store
from tests.support.builders import a_beat, a_job, admitted
from workers.duties.job_loop import JobLoop
from workers.engine.factory import make_engine

WORKER, MODEL = "w1", "sim"


class Flaky(Store):
    """The real store behind a line that is cut before a call, or after it so that its answer is lost."""

    away = False
    swallow = ""

    def __init__(self, client: redis.Redis) -> None:
        super().__init__(client)
        #: What was called: the script's name, and the job's id where it is about one.
        self.calls: list[tuple[str, str]] = []

    def _call(self, script: str, **given: scripts.Value | Sequence[scripts.Value]) -> tuple[str, list[Any]]:
        if self.away:
            raise StoreUnavailable("the line is cut")
        self.calls.append((script, str(given.get("id", ""))))
        answer = super()._call(script, **given)
        if script == self.swallow:
            self.swallow = ""
            raise StoreUnavailable("the answer is lost")
        return answer

    def _call_many(self, script: str, calls: Sequence[scripts.Call]) -> list[tuple[str, list[Any]] | Exception]:
        if self.away:
            raise StoreUnavailable("the line is cut")
        self.calls += [(script, str(given["id"])) for given in calls]
        answers = super()._call_many(script, calls)
        if script == self.swallow:
            self.swallow = ""
            raise StoreUnavailable("the answer is lost")
        return answers


class OneWorker:
    """Delivery, intake and engine of a worker; `beat` makes it live."""

    def __init__(self, store: Flaky, settings: Settings) -> None:
        self.store, self.clock = store, HeldClock()
        start_engine = partial(make_engine, settings, clock=self.clock)
        self.job_loop = JobLoop(store, WORKER, MODEL, start_engine, generated_weight=4, clock=self.clock)
        self.engine, self.delivery = self.job_loop.engine, self.job_loop.delivery
        self.claimer, self.claimed_jobs = self.job_loop.claimer, self.job_loop.claimed_jobs
        self.engine.backend._sleep = self.clock.advance
        self.claimer.paused = False
        self.beat()

    def beat(self) -> list[str]:
        """One renewal of all that is held; the ids that are lost."""
        return self.store.renew(a_beat(WORKER, slots=8, model=MODEL), self.claimed_jobs.named()).lost

    def go(self, until: Callable[[], bool]) -> None:
        """Rounds and steps in turn, until so."""
        for _ in range(5_000):
            if until():
                return
            self.job_loop.one_pass()
            self.engine.step()
        raise AssertionError("5000 rounds were not enough")

    def all_ended(self) -> bool:
        """Whether no admitted job is left."""
        return self.store.client.zcard(keys.inflight()) == 0


def make(flaky: Flaky, **environ: str) -> OneWorker:
    """A worker of one slot, unless `environ` says otherwise."""
    plain = {"PENSTOCK_ENGINE": "sim", "PENSTOCK_ADMISSION": "bounds", "PENSTOCK_MAX_BATCH_SIZE": "1"}
    settings = load(environ=plain | environ, dotenv=None)
    flaky.configure(settings)
    return OneWorker(flaky, settings)


def ask(store: Store, tenant: str = "blue", **spelled: Any) -> str:
    """Admit a job of three words; its id."""
    return admitted(store, a_job(tenant, **({"model": MODEL, "payload": {"prompt": "a b c"}} | spelled)))


def state(store: Store, job_id: str) -> tuple[JobState, int]:
    """A job's state and how often it was tried."""
    view = store.touch(job_id, quiet=True)
    assert view is not None
    return view.state, view.attempts
