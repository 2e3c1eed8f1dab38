"""Cancel the jobs in doubt, and the jobs that the door could not cancel while the store did not answer.

A job is in doubt if its offer got no answer, so that the door does not know whether the store admitted the job. The
door has answered the client with a yield. If the store did admit the job, a worker would compute an answer that no
client reads. The job is therefore canceled as soon as the store answers again, unless the client has sent the request
again by then (docs/adr/0022). The other jobs are those whose client disconnected while the store did not answer.
"""

import threading
from collections import deque
from dataclasses import dataclass, replace

from shared.clock import Clock
from shared.errors import StoreUnavailable
from shared.jobs.outcomes import EndCode
from shared.log import get_logger
from shared.store.store import Store

log = get_logger()

#: How long to wait before the next attempt while the store does not answer, in seconds.
REST_S = 0.25
#: How long after the first cancel a job is canceled a second time, in seconds. If the store was paused, it may not yet
#: have read the offer from its connection, and it may admit the job after the first cancel.
SECOND_CANCEL_AFTER_S = 5.0
#: The maximum length of each of the two queues: more jobs than a door admits in its busiest second. If a queue is full,
#: its oldest job is dropped from it without a cancel, and ends no later than its deadline.
MAX_JOBS = 100_000


@dataclass(frozen=True)
class _InDoubtJob:
    job_id: str
    #: The id of the offer, or "" if the job's client has disconnected: the job is then canceled unconditionally.
    offer: str
    #: When to cancel the job, in seconds of the monotonic clock.
    due_s: float


class InDoubtJobs:
    """Holds the jobs to cancel in two queues, and cancels them in a thread that runs only while there are any."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store, self._clock = store, clock
        self._lock = threading.Lock()
        #: Guarded by the lock: jobs to be canceled for the first and for the second time, each ordered by due time.
        self._first: deque[_InDoubtJob] = deque(maxlen=MAX_JOBS)
        self._second: deque[_InDoubtJob] = deque(maxlen=MAX_JOBS)
        #: Held during a pass: two passes at the same time would cancel the same job twice, the second time too late.
        self._passing = threading.Lock()
        self._thread: threading.Thread | None = None
        self._added = threading.Event()
        self._closed = False

    def close(self) -> None:
        """Give up the jobs whose store does not answer, because their cell has left the directory."""
        self._closed = True
        self._added.set()

    def __len__(self) -> int:
        return len(self._first) + len(self._second)

    def add(self, job_id: str, offer: str = "") -> None:
        """Cancel this job as soon as the store answers, and a second time SECOND_CANCEL_AFTER_S later.

        With an `offer`, the store cancels the job only if that offer created or found it, and no client can have the
        job's id from another offer.
        Without an `offer`, the store cancels the job in any case, because the job's client has disconnected.
        """
        with self._lock:
            self._first.append(_InDoubtJob(job_id, offer, self._clock.monotonic()))
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="doubts", daemon=True)
                self._thread.start()
        self._added.set()

    def one_pass(self) -> float | None:
        """Cancel the jobs that are due. Return the seconds until the next job is due, or None if no job is left.

        Raises StoreUnavailable.
        """
        with self._passing:
            while True:
                self._added.clear()
                with self._lock:
                    jobs = self._first or self._second
                    if not jobs:
                        return None
                    job, now_s = jobs[0], self._clock.monotonic()
                    if job.due_s > now_s:
                        return job.due_s - now_s
                self._cancel(job)
                with self._lock:
                    if jobs and jobs[0] is job:
                        jobs.popleft()
                    if jobs is self._first:
                        self._second.append(replace(job, due_s=now_s + SECOND_CANCEL_AFTER_S))

    def _cancel(self, job: _InDoubtJob) -> None:
        code = EndCode.UNHEARD if job.offer else EndCode.CANCELED
        try:
            answer = self._store.cancel(job.job_id, code=code, offer=job.offer)
        except StoreUnavailable:
            raise
        except Exception:
            # A job that cannot be canceled ends at its deadline; it must not delay the cancels of other jobs.
            log.exception("admit.in_doubt", job=job.job_id)
        else:
            log.info("admit.in_doubt", job=job.job_id, cancel=answer.value)

    def _run(self) -> None:
        never_set = threading.Event()
        while True:
            try:
                rest_s = self.one_pass()
            except StoreUnavailable:
                if self._closed:
                    self._first.clear()
                    self._second.clear()
                never_set.wait(REST_S)
                continue
            with self._lock:
                if rest_s is None and not len(self):
                    self._thread = None
                    return
            # `add` ends this wait, because an added job is due at once.
            self._added.wait(rest_s or 0)
