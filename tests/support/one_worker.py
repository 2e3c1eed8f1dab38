"""One worker run in one thread: a real store that can be disconnected, a sim engine and a manual clock."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import redis

from shared.clock import ManualClock
from shared.errors import StoreUnavailable
from shared.jobs.states import JobState
from shared.settings.settings import Settings, load
from shared.store import keys, scripts
from shared.store.store import Store
from tests.support.builders import a_heartbeat, a_job, admitted
from workers.duties.job_loop import JobLoop
from workers.engine.factory import make_engine
from workers.engine.loop import Engine

WORKER, MODEL = "w1", "sim"


class FlakyStore(Store):
    """The real store over a connection that can fail before a call, or after a call so that its answer is lost."""

    disconnected = False
    lose_answer_of = ""

    def __init__(self, client: redis.Redis) -> None:
        super().__init__(client)
        #: The calls so far: the name of the script and the id of its job, or "" if it has none.
        self.calls: list[tuple[str, str]] = []
        #: The scripts of each packet so far that had several.
        self.packets: list[list[str]] = []

    def _call(self, script: str, **given: scripts.Value | Sequence[scripts.Value]) -> tuple[str, list[Any]]:
        if self.disconnected:
            raise StoreUnavailable("the line is cut")
        self.calls.append((script, str(given.get("id", ""))))
        answer = super()._call(script, **given)
        if script == self.lose_answer_of:
            self.lose_answer_of = ""
            raise StoreUnavailable("the answer is lost")
        return answer

    def _call_many(self, calls: Sequence[tuple[str, scripts.Call]]) -> list[tuple[str, list[Any]] | Exception]:
        if self.disconnected:
            raise StoreUnavailable("the line is cut")
        self.calls += [(script, str(given.get("id", ""))) for script, given in calls]
        self.packets.append([script for script, _ in calls])
        answers = super()._call_many(calls)
        if self.lose_answer_of in {script for script, _ in calls}:
            self.lose_answer_of = ""
            raise StoreUnavailable("the answer is lost")
        return answers


class OneWorker:
    """The job loop and the engine of a worker; its first heartbeat makes it live."""

    def __init__(self, store: FlakyStore, settings: Settings) -> None:
        self.store, self.clock = store, ManualClock()
        start_engine = partial(make_engine, settings, clock=self.clock)
        self.job_loop = JobLoop(
            store,
            WORKER,
            MODEL,
            start_engine,
            generated_weight=4,
            prepare_threads=2,
            preempts=settings.preempts,
            resume_tokens=settings.resume_tokens,
            interval_s=settings.text_interval_ms / 1000,
            clock=self.clock,
        )
        assert isinstance(self.job_loop.engine, Engine)
        self.engine, self.delivery = self.job_loop.engine, self.job_loop.delivery
        self.claimer, self.claimed_jobs = self.job_loop.claimer, self.job_loop.claimed_jobs
        self.engine.backend._sleep = self.clock.advance
        self.claimer.paused = False
        self.heartbeat()

    def heartbeat(self) -> list[str]:
        """Renew the leases of all jobs that the worker holds; return the ids of the lost jobs."""
        progress = self.claimed_jobs.progress(self.engine.backend.facts.prefill_tps)
        facts = {"can_pause": int(self.engine.can_pause)}
        report = a_heartbeat(WORKER, slots=8, model=MODEL, facts=facts)
        return self.store.renew(report, self.claimed_jobs.held(), progress=progress).lost

    def run_until(self, until: Callable[[], bool]) -> None:
        """Run passes of the job loop and steps of the engine in turn until `until` returns true."""
        for _ in range(5_000):
            if until():
                return
            self.job_loop.one_pass()
            self.engine.step()
        raise AssertionError("5000 passes were not enough")

    def all_ended(self) -> bool:
        """Return whether no job is inflight."""
        return self.store.client.zcard(keys.inflight()) == 0


def make_worker(flaky: FlakyStore, **environ: str) -> OneWorker:
    """Return a worker with one slot, unless `environ` says otherwise."""
    defaults = {"PENSTOCK_ENGINE": "sim", "PENSTOCK_ADMISSION": "bounds", "PENSTOCK_MAX_BATCH_SIZE": "1"}
    settings = load(environ=defaults | environ, dotenv=None)
    flaky.configure(settings)
    return OneWorker(flaky, settings)


def admit_job(store: Store, tenant: str = "blue", **overrides: Any) -> str:
    """Admit a job whose prompt has three words; return its id."""
    return admitted(store, a_job(tenant, **({"model": MODEL, "payload": {"prompt": "a b c"}} | overrides)))


def state_and_attempts(store: Store, job_id: str) -> tuple[JobState, int]:
    """Return a job's state and the number of its attempts."""
    view = store.touch(job_id, quiet=True)
    assert view is not None
    return view.state, view.attempts
