"""Prepares jobs on threads of its own: tokenizes their prompts, and compiles what their answers must match.

One job at a time is prepared for each tenant, and the tenants take turns, so that one tenant's slow jobs delay nobody
else's. A thread ends when it finds nothing to do.
"""

import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass

from workers.duties.claimed_jobs import HeldJob
from workers.engine.backend import Prepared
from workers.engine.events import JobRejected, JobSpec


@dataclass(frozen=True)
class PreparationResult:
    """The result of one job's preparation: the prepared job, or the exception that prevented it."""

    held_job: HeldJob
    prepared: Prepared | Exception
    #: CPU time of this process and of the engine's helper processes.
    cpu_s: float


def prepare(engine_prepare: Callable[[JobSpec], Prepared], held_job: HeldJob, spec: JobSpec) -> PreparationResult:
    """Prepare a job on this thread and measure the CPU time."""
    began_s = time.thread_time()
    prepared: Prepared | Exception
    try:
        prepared = engine_prepare(spec)
    except Exception as fault:  # noqa: BLE001 - the job's end tells it
        prepared = fault
    except BaseException as fault:  # noqa: BLE001 - a panic of a library in Rust, which is no Exception, ends one job
        prepared = RuntimeError(f"{type(fault).__name__}: {fault}")
        prepared.__cause__ = fault
    helper_s = prepared.helper_cpu_s if isinstance(prepared, Prepared | JobRejected) else 0.0
    return PreparationResult(held_job, prepared, time.thread_time() - began_s + helper_s)


class Preparation:
    """The jobs that are being prepared, and those that wait for that."""

    def __init__(self, engine_prepare: Callable[[JobSpec], Prepared], threads: int, wake: Callable[[], None]) -> None:
        """Prepare up to `threads` jobs at once. `wake` is called, on another thread, when a job was prepared."""
        self._prepare, self._max_threads, self._wake = engine_prepare, threads, wake
        #: Protects the attributes below.
        self._lock = threading.Lock()
        #: Tenant → its jobs that wait, in order. The tenant whose turn is next comes first.
        self._waiting: OrderedDict[str, deque[tuple[HeldJob, JobSpec]]] = OrderedDict()
        #: Tenants for whom a thread prepares a job now.
        self._busy: set[str] = set()
        self._threads = 0
        self._finished: deque[PreparationResult] = deque()
        #: Sum of the cells of all jobs that are not finished.
        self._cells = 0

    def add(self, held_job: HeldJob, spec: JobSpec) -> None:
        """Prepare a job on another thread. Its outcome is returned by a later call of `finished`."""
        with self._lock:
            self._waiting.setdefault(spec.tenant, deque()).append((held_job, spec))
            self._cells += _cells(held_job)
            starts = self._threads < self._max_threads and spec.tenant not in self._busy
            self._threads += starts
        if starts:
            threading.Thread(target=self._run, name="preparation", daemon=True).start()

    def finished(self) -> list[PreparationResult]:
        """Remove and return the outcomes of all jobs that were prepared since the last call."""
        if not self._finished:
            return []
        with self._lock:
            done = list(self._finished)
            self._finished.clear()
            self._cells -= sum(_cells(outcome.held_job) for outcome in done)
        return done

    @property
    def cells(self) -> int:
        """The KV cells that the jobs in preparation need, as the door has estimated them."""
        with self._lock:
            return self._cells

    def _run(self) -> None:
        while (taken := self._take()) is not None:
            held_job, spec = taken
            outcome = prepare(self._prepare, held_job, spec)
            with self._lock:
                self._busy.discard(spec.tenant)
                self._finished.append(outcome)
            self._wake()

    def _take(self) -> tuple[HeldJob, JobSpec] | None:
        """Return the next job of the first tenant for whom no thread works, or None. The thread then ends."""
        with self._lock:
            tenant = next((tenant for tenant in self._waiting if tenant not in self._busy), None)
            if tenant is None:
                self._threads -= 1
                return None
            jobs = self._waiting[tenant]
            taken = jobs.popleft()
            self._waiting.move_to_end(tenant)
            if not jobs:
                del self._waiting[tenant]
            self._busy.add(tenant)
            return taken


def _cells(held_job: HeldJob) -> int:
    return held_job.claimed.cells
