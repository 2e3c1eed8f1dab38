"""Jobs of which the door does not know whether the store took them: each is canceled when the store answers.

The client was told to come back, so a job that was taken after all would run for nobody; unless the client has
come back for it by then (docs/adr/0022).
"""

import threading
from collections import deque
from dataclasses import dataclass, replace

import structlog

from shared.clock import Clock
from shared.errors import StoreUnavailable
from shared.jobs.outcomes import EndCode
from shared.store.store import Store

log = structlog.get_logger()

#: While the store is away.
REST_S = 0.25
#: An admit may lie unread in the connection of a store that was paused, and be run after the first cancel.
SECOND_LOOK_S = 5.0
#: More than a door admits in its longest second; beyond, the oldest are left to their deadlines.
MOST = 100_000


@dataclass(frozen=True)
class _InDoubtJob:
    job_id: str
    #: "": its client has gone, so that it is ended whoever has heard of it.
    offer: str
    #: Not before, in seconds of the clock.
    due_s: float


class InDoubtJobs:
    """A list of ids in doubt, and the duty that empties it. Its thread lives while the list does."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store, self._clock = store, clock
        self._lock = threading.Lock()
        #: Under the lock: what has not been looked at yet, and what is looked at once more, each in the order of time.
        self._first: deque[_InDoubtJob] = deque(maxlen=MOST)
        self._second: deque[_InDoubtJob] = deque(maxlen=MOST)
        self._thread: threading.Thread | None = None
        self._added = threading.Event()

    def __len__(self) -> int:
        return len(self._first) + len(self._second)

    def add(self, job_id: str, offer: str = "") -> None:
        """Cancel this job as soon as the store answers, and once more later.

        With an `offer`, only while nobody has heard of the job; without, its client has gone.
        """
        with self._lock:
            self._first.append(_InDoubtJob(job_id, offer, self._clock.monotonic()))
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="doubts", daemon=True)
                self._thread.start()
        self._added.set()

    def one_pass(self) -> float | None:
        """Cancel what is due; seconds until the next pass, None when nothing is left. Raises StoreUnavailable."""
        while True:
            self._added.clear()
            with self._lock:
                doubts = self._first or self._second
                if not doubts:
                    return None
                doubt, now_s = doubts[0], self._clock.monotonic()
                if doubt.due_s > now_s:
                    return doubt.due_s - now_s
            self._cancel(doubt)
            with self._lock:
                if doubts and doubts[0] is doubt:
                    doubts.popleft()
                if doubts is self._first:
                    self._second.append(replace(doubt, due_s=now_s + SECOND_LOOK_S))

    def _cancel(self, doubt: _InDoubtJob) -> None:
        code = EndCode.UNHEARD if doubt.offer else EndCode.CANCELED
        try:
            answer = self._store.cancel(doubt.job_id, code=code, offer=doubt.offer)
        except StoreUnavailable:
            raise
        except Exception:
            # Left to its deadline: one that cannot be canceled holds up no other.
            log.exception("admit.in_doubt", job=doubt.job_id)
        else:
            log.info("admit.in_doubt", job=doubt.job_id, cancel=answer.value)

    def _run(self) -> None:
        rest = threading.Event()
        while True:
            try:
                rest_s = self.one_pass()
            except StoreUnavailable:
                rest.wait(REST_S)
                continue
            with self._lock:
                if rest_s is None and not len(self):
                    self._thread = None
                    return
            # What is added meanwhile is due at once.
            self._added.wait(rest_s or 0)
