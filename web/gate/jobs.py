"""The jobs in flight of one connection: each followed to its end, or canceled when their client goes."""

import threading
from collections.abc import Callable

import structlog

from shared.errors import StoreUnavailable
from shared.jobs.job import JobView
from web.gate.answers import Frame, Ref, final, progress, wrong
from web.http.api_errors import ApiError
from web.operations.cancel_on_disconnect import cancel_when_possible
from web.operations.event_stream import JobEnded, JobStarted, TextDelta, follow_job
from web.runtime.context import DoorContext

log = structlog.get_logger()


class GateJob:
    """One of them. Fixed at birth."""

    def __init__(self, view: JobView, ref: Ref, *, stream: bool) -> None:
        self.view, self.ref, self.stream = view, ref, stream


class Jobs:
    """A connection's jobs. `tell` sends a frame; `at_rest` is called when the last of them has been told to its end."""

    def __init__(self, context: DoorContext, tell: Callable[[Frame], bool], at_rest: Callable[[], None]) -> None:
        self._context, self._tell, self._at_rest = context, tell, at_rest
        self._lock = threading.Lock()
        #: Under the lock.
        self._jobs: set[GateJob] = set()
        self._by_ref: dict[str | int, GateJob] = {}
        #: Set once: nobody listens any more.
        self._over = False
        #: When the last of them ended, in seconds of the clock.
        self.rested_s = context.clock.monotonic()

    def __len__(self) -> int:
        return len(self._jobs)

    def add(self, job: GateJob) -> None:
        """From now on the connection owns this job; its story is told from `follow` on."""
        with self._lock:
            self._jobs.add(job)
            if job.ref is not None:
                self._by_ref[job.ref] = job

    def follow(self, job: GateJob) -> None:
        """Tell the job's story to its end."""
        threading.Thread(target=self._follow, args=(job,), name="gate-job", daemon=True).start()

    def find(self, ref: str | int) -> JobView | None:
        """The job in flight with this tag."""
        job = self._by_ref.get(ref)
        return None if job is None else job.view

    def cancel(self, jobs: list[GateJob]) -> None:
        """Their client has gone. What cannot be canceled now is, when the store is back."""
        away = False
        for job in jobs:
            log.info("client.gone", job=job.view.id, tenant=job.view.tenant)
            if away:
                self._context.in_doubt.add(job.view.id)
                continue
            try:
                self._context.cancel(job.view)
            except StoreUnavailable:
                # One wait for a silent store is enough for all of them.
                away = True
                self._context.in_doubt.add(job.view.id)
            except Exception:
                log.exception("gate.fault", job=job.view.id)

    def leave(self) -> list[GateJob]:
        """Tell nothing more; the jobs that have not ended, which live on."""
        with self._lock:
            self._over = True
            return list(self._jobs)

    def _follow(self, job: GateJob) -> None:
        try:
            for item in follow_job(self._context, job.view, stop=lambda: self._over):
                if isinstance(item, JobEnded):
                    self._end(job, final(job.ref, item.view))
                elif job.stream and isinstance(item, JobStarted | TextDelta):
                    self._tell(progress(job.ref, job.view, item))
        except ApiError as problem:
            self._end(job, wrong(job.ref, problem))
        except Exception:
            log.exception("gate.fault", job=job.view.id)
            cancel_when_possible(self._context, job.view)
            self._end(job, wrong(job.ref, ApiError("internal_error", "the gate failed on this job; its log says why")))

    def _end(self, job: GateJob, frame: Frame) -> None:
        """Free the tag, then tell: whoever reads the last frame may use the tag again."""
        with self._lock:
            self._jobs.discard(job)
            if job.ref is not None:
                self._by_ref.pop(job.ref, None)
            self.rested_s = self._context.clock.monotonic()
        self._tell(frame)
        if not self._jobs:
            self._at_rest()
