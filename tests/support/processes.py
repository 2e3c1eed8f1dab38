"""Real processes for faults and end-to-end tests: a store, workers and ingresses that a test can kill and pause.

A `Stage` starts all processes of one test on one private store and ends them. Nothing here sleeps for a fixed
time: every wait is for a condition, and when a wait fails, the processes' logs are shown.
"""

import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal, Self, TypeVar

import redis

from shared.audit.invariants import Breach, find_breaches
from shared.errors import StoreUnavailable
from shared.jobs.job import JobView, new_job_id
from shared.store.connection import OPERATOR, open_client
from shared.store.embedded import EmbeddedStore
from shared.store.replies import Admitted, WorkerView
from shared.store.store import Store
from tests.support.builders import new_job
from tests.support.preloaded import Forked, fork

T = TypeVar("T")

ROOT = Path(__file__).resolve().parents[2]
#: The shortest and the longest time between two checks of a condition. In between it is a twentieth of the time that
#: has passed: hundreds of tests wait seconds for a process, and each check costs CPU time here and in what is asked.
_CHECK_INTERVALS_S = (0.01, 0.03)


def wait_for(condition: Callable[[], T | Literal[False] | None], what: str, *, timeout_s: float = 20.0) -> T:
    """Wait until the condition is true; return its value. Raises AssertionError with `what` after `timeout_s`.

    While the store is unavailable, the condition counts as false.
    """
    shortest_s, longest_s = _CHECK_INTERVALS_S
    began = time.monotonic()
    while True:
        # Before the check: a process that is descheduled after it checks once more.
        waited_s = time.monotonic() - began
        try:
            answer = condition()
        except (StoreUnavailable, redis.ConnectionError, redis.TimeoutError):
            answer = None
        if answer:
            return answer
        if waited_s > timeout_s:
            raise AssertionError(f"waited {timeout_s:g} s in vain: {what}")
        time.sleep(min(longest_s, max(shortest_s, waited_s / 20)))


def in_time(attempt: Callable[[], Iterable[tuple[float, float]]], *, tries: int = 5) -> None:
    """Repeat an attempt until all times that it returns, as (seconds, limit), are below their limits.

    A process may be descheduled for seconds on a busy machine, so one time above its limit proves nothing. Fails with
    all times if no attempt was in time.
    """
    seen = []
    for _ in range(tries):
        seen.append(list(attempt()))
        if all(took_s < limit_s for took_s, limit_s in seen[-1]):
            return
    raise AssertionError(f"no attempt was in time; (seconds, limit): {seen}")


class Process:
    """One real process and its log."""

    def __init__(self, arguments: list[str], environ: dict[str, str], log: Path) -> None:
        self.log = log
        with log.open("ab") as output, Path(os.devnull).open("rb") as nothing:
            self._popen = fork(arguments, environ, nothing, output, output) or subprocess.Popen(
                arguments, env=environ, stdin=nothing, stdout=output, stderr=output
            )
        self.pid = self._popen.pid

    @property
    def alive(self) -> bool:
        return self._popen.poll() is None

    def kill(self) -> None:
        """Kill the process with SIGKILL and wait until it is dead."""
        self._signal(signal.SIGKILL)
        self._popen.wait()

    def terminate(self) -> None:
        self._signal(signal.SIGTERM)

    def pause(self) -> None:
        """Stop the process; return when its last thread has stopped, which can take a while on a busy machine."""
        self._signal(signal.SIGSTOP)
        if isinstance(self._popen, Forked):
            wait_for(self._popen.is_stopped, f"process {self.pid} to stop")
        else:
            os.waitid(os.P_PID, self.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)

    def resume(self) -> None:
        self._signal(signal.SIGCONT)

    def exit_code(self, *, timeout_s: float = 20.0) -> int:
        """Wait until the process ends; return its exit code, -9 if it was killed."""
        return self._popen.wait(timeout_s)

    def log_lines(self, event: str) -> list[str]:
        """Return the complete lines of the log that contain `event`."""
        whole = self.log.read_text(errors="replace").rpartition("\n")[0]
        return [line for line in whole.splitlines() if event in line]

    def figure(self, name: str) -> float:
        """Return one metric of a worker that was started with PENSTOCK_WORKER_LISTEN=127.0.0.1:0."""
        line = wait_for(lambda: self.log_lines("worker.exporter"), "the worker's address")[0]
        with urllib.request.urlopen(f"http://{json.loads(line)['address']}/metrics", timeout=5) as response:
            lines = response.read().decode().splitlines()
        values = [float(line.split()[1]) for line in lines if line.split()[0] == name]
        assert values, f"no {name} among {lines}"
        return values[0]

    def end(self) -> None:
        """Kill the process if it is alive, even if it is stopped."""
        if self.alive:
            self._signal(signal.SIGCONT)
            self.kill()

    def _signal(self, number: int) -> None:
        # The process may end between the look and the signal.
        with suppress(ProcessLookupError):
            if self.alive:
                os.kill(self.pid, number)


class Stage:
    """A private store and the processes that use it. `environ` holds the settings of all of them."""

    def __init__(self, folder: Path, **environ: str) -> None:
        self._folder = folder
        self._environ = environ
        self._processes: list[Process] = []
        self.embedded = EmbeddedStore.start(folder / "state")
        self.url = self.embedded.url
        self.client = open_client(self.url, name="penstock-test", timeouts=OPERATOR)
        self.store = Store(self.client)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.show_logs()
        for process in self._processes:
            process.end()
        self.client.close()
        self.embedded.stop(grace_s=0.0)

    def show_logs(self) -> None:
        """Print the logs; pytest shows them with the failure."""
        for process in self._processes:
            print(f"--- {process.log.name}")
            print(process.log.read_text(errors="replace")[-20_000:])

    def environ(self, **more: str) -> dict[str, str]:
        """Return the environment of a process on this stage, without the PENSTOCK_ settings of this machine."""
        # No coverage: a tracer would slow down processes whose timing the tests check.
        plain = {name: text for name, text in os.environ.items() if not name.startswith(("PENSTOCK_", "COVERAGE_"))}
        ours = {"REDIS_URL": self.url, "PENSTOCK_STATE_DIR": str(self._folder / "state"), "PENSTOCK_LOG_FORMAT": "json"}
        return plain | ours | self._environ | more

    def start(self, name: str, arguments: list[str], **environ: str) -> Process:
        """Start any program on this stage."""
        process = Process(arguments, self.environ(**environ), self._folder / f"{name}-{len(self._processes)}.log")
        self._processes.append(process)
        return process

    def worker(self, *, wait: bool = True, **environ: str) -> Process:
        """Start a worker; with `wait`, return once it counts as live."""
        process = self.start("worker", [sys.executable, "-P", "-m", "workers"], **environ)
        if wait:
            wait_for(lambda: self.view(process) or not process.alive, "a live worker", timeout_s=60)
            assert process.alive, process.log.read_text(errors="replace")
        return process

    def web(self, port: int, **environ: str) -> Process:
        """Start an ingress on loopback; return once it answers /health."""
        arguments = [sys.executable, "-P", "-m", "web"]
        process = self.start("web", arguments, PENSTOCK_LISTEN=f"127.0.0.1:{port}", **environ)
        wait_for(lambda: _answers(f"http://127.0.0.1:{port}/health") or not process.alive, "an ingress", timeout_s=60)
        assert process.alive, process.log.read_text(errors="replace")
        return process

    def view(self, process: Process) -> WorkerView | None:
        """Return the store's view of the worker, or None if it is not live."""
        for worker in self.store.snapshot().workers:
            if worker.live and worker.facts.get("pid") == str(process.pid):
                return worker
        return None

    def folder(self, name: str) -> Path:
        """Create a folder of this stage."""
        folder = self._folder / name
        folder.mkdir()
        return folder

    # The jobs on the stage.

    def admit(self, tenant: str = "blue", **overrides: Any) -> str:
        """Offer a job that must be admitted: 4 prompt words, 20 answer words, five minutes. Return its id."""
        fields: dict[str, Any] = {
            "id": new_job_id(),
            "tenant": tenant,
            "model": "sim",
            "payload": {"prompt": "tell me a story"},
            "prompt_tokens": 4,
            "max_tokens": 20,
            "cost_mwt": 84_000,
            "deadline_ms": 300_000,
        }
        answer = self.store.admit(new_job(**(fields | overrides)))
        assert isinstance(answer, Admitted), answer
        return answer.id

    def job(self, job_id: str) -> JobView:
        """Return the present view of a job that must exist."""
        view = self.store.touch(job_id, quiet=True)
        assert view is not None, f"{job_id} is not known"
        return view

    def jobs(self, ids: Iterable[str]) -> list[JobView]:
        return [self.job(job_id) for job_id in ids]

    def ended(self, *ids: str, timeout_s: float = 20.0) -> list[JobView]:
        """Wait until all the jobs have ended; return them."""
        return wait_for(
            lambda: (views := self.jobs(ids)) and all(view.ended_ms is not None for view in views) and views,
            f"{len(ids)} jobs to end",
            timeout_s=timeout_s,
        )

    def wait_until_running(self, *ids: str, timeout_s: float = 20.0) -> None:
        """Wait until all the jobs run at once."""
        wait_for(
            lambda: all(view.state.value == "running" for view in self.jobs(ids)),
            f"{len(ids)} jobs to run",
            timeout_s=timeout_s,
        )

    def wait_until_computing(self, *ids: str) -> None:
        """Wait until the jobs have their first text.

        The store counts a job as running from its claim, but a worker whose drain begins before it has read the
        claim's answer returns the job. Once a job has text, a drain lets it continue.
        """
        for job_id in ids:
            self.wait_for_text(job_id)

    def wait_for_text(self, job_id: str, *, timeout_s: float = 20.0) -> None:
        """Follow the job, and wait until it has its first text in the event stream."""
        self.store.follow(job_id)
        wait_for(lambda: "token" in self.event_types(job_id), f"the first text of {job_id}", timeout_s=timeout_s)

    def event_types(self, job_id: str) -> list[str]:
        """Return the types of the job's events so far, in order."""
        events = self.store.read_events({job_id: "0"}, block_ms=1).get(job_id, [])
        return [fields["type"] for _, fields in events]

    # The state of the store.

    def inflight(self) -> int:
        return self.store.snapshot().inflight

    def assert_sound(self) -> None:
        """Wait until every admitted job has ended, and assert that every invariant holds."""
        wait_for(lambda: self.inflight() == 0, "every admitted job to end")
        found = self.breaches()
        assert found == [], found

    def breaches(self) -> list[Breach]:
        """Return every broken invariant, given that a reaper runs."""
        return find_breaches(self.client, timely=True)

    def stat(self, name: str) -> int:
        """Return one of the store's counters."""
        return self.store.snapshot(stats=True).stats.get(name, 0)


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=1) as response:
            return bool(response.status == 200)
    except OSError:
        return False
