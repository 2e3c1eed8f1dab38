"""The jobs in flight on one connection: follow each job to its end, and cancel jobs when the client disconnects."""

import threading
from collections.abc import Callable

from shared.errors import StoreUnavailable
from shared.jobs.job import JobView
from shared.log import get_logger
from web.gate.answers import Frame, Ref, error_frame, final, progress
from web.http.api_errors import ApiError
from web.jobs.cancel_on_disconnect import cancel_when_possible
from web.jobs.event_stream import JobEnded, JobStarted, TextDelta, follow_job
from web.runtime.context import DoorContext
from web.runtime.credentials.key_watch import KeyUse

log = get_logger()


class GateJob:
    """One job in flight: its view at admission, its `ref`, whether to stream its text, and the use of its key."""

    def __init__(self, view: JobView, ref: Ref, *, stream: bool, use: KeyUse) -> None:
        self.view, self.ref, self.stream, self.use = view, ref, stream, use


class ConnectionJobs:
    """The jobs in flight on one connection."""

    def __init__(self, context: DoorContext, send: Callable[[Frame], bool], on_empty: Callable[[], None]) -> None:
        """Start without jobs.

        `send` is called to send a frame. `on_empty` is called after a job's last frame if no other job is in flight.
        """
        self._context, self._send, self._on_empty = context, send, on_empty
        self._lock = threading.Lock()
        #: `_jobs` and `_by_ref` are changed only while `_lock` is held.
        self._jobs: set[GateJob] = set()
        self._by_ref: dict[str | int, GateJob] = {}
        #: Set when the connection ends, and never cleared. No frames are sent after that.
        self._connection_over = False
        #: When the most recent job ended; until a job has ended, when the connection began (monotonic clock, in s).
        self.last_end_s = context.clock.monotonic()

    def __len__(self) -> int:
        return len(self._jobs)

    def add(self, job: GateJob) -> None:
        """Make the connection the owner of this job. Call `follow` afterwards to send the job's frames."""
        with self._lock:
            self._jobs.add(job)
            if job.ref is not None:
                self._by_ref[job.ref] = job

    def follow(self, job: GateJob) -> None:
        """Start a thread that sends the job's frames until it has ended."""
        threading.Thread(target=self._follow, args=(job,), name="gate-job", daemon=True).start()

    def find(self, ref: str | int) -> JobView | None:
        """Return the job in flight with this `ref`, or None if there is no such job."""
        job = self._by_ref.get(ref)
        return None if job is None else job.view

    def cancel(self, jobs: list[GateJob]) -> None:
        """Cancel the jobs of a client that has disconnected.

        Jobs that cannot be canceled because the store does not answer are canceled as soon as it answers again.
        """
        store_away = False
        for job in jobs:
            log.info("client.gone", job=job.view.id, tenant=job.view.tenant)
            if store_away:
                self._context.of_job(job.view.id).in_doubt.add(job.view.id)
                continue
            try:
                self._context.cancel(job.view)
            except StoreUnavailable:
                # Do not try the remaining jobs now: each try would wait for the store timeout again.
                store_away = True
                self._context.of_job(job.view.id).in_doubt.add(job.view.id)
            except Exception:
                log.exception("gate.fault", job=job.view.id)

    def any_with_valid_key(self) -> bool:
        """Return whether the key of at least one job in flight is valid."""
        with self._lock:
            return any(not job.use.ended for job in self._jobs)

    def leave(self) -> list[GateJob]:
        """Stop sending frames, and return the jobs that have not ended. This method cancels no job."""
        with self._lock:
            self._connection_over = True
            return list(self._jobs)

    def _follow(self, job: GateJob) -> None:
        try:
            for item in follow_job(
                self._context,
                job.view,
                stop=lambda: self._connection_over or job.use.ended,
                shows_text=job.stream,
            ):
                if isinstance(item, JobEnded):
                    self._end(job, final(job.ref, item.view))
                elif job.stream and isinstance(item, JobStarted | TextDelta):
                    self._send(progress(job.ref, job.view, item))
            if job.use.problem is not None and not self._connection_over and job in self._jobs:
                cancel_when_possible(self._context, job.view)
                self._end(job, error_frame(job.ref, job.use.problem))
        except ApiError as problem:
            self._end(job, error_frame(job.ref, problem))
        except Exception:
            log.exception("gate.fault", job=job.view.id)
            cancel_when_possible(self._context, job.view)
            internal_error = ApiError("internal_error", "the gate failed on this job; its log says why")
            self._end(job, error_frame(job.ref, internal_error))

    def _end(self, job: GateJob, last_frame: Frame) -> None:
        """Free the job's `ref`, then send the job's last frame; do nothing if the connection is over.

        In this order, a client that has read the last frame can use the `ref` again at once.
        """
        with self._lock:
            if self._connection_over:
                return
            self._jobs.discard(job)
            if job.ref is not None:
                self._by_ref.pop(job.ref, None)
            self.last_end_s = self._context.clock.monotonic()
        self._send(last_frame)
        if not self._jobs:
            self._on_empty()
