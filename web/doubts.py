"""Jobs of which the door does not know whether the store took them: each is canceled when the store answers.

The client was told to come back, so a job that was taken after all would run for nobody.
"""

import threading
from collections import deque

import structlog

from shared.clock import Clock
from shared.errors import StoreUnavailable
from shared.store import Store

log = structlog.get_logger()

#: While the store is away.
REST_S = 0.25
#: An admit may lie unread in the connection of a store that was paused, and be run after the first cancel.
SECOND_LOOK_S = 5.0
#: More than a door admits in its longest second; beyond, the oldest are left to their deadlines.
MOST = 100_000


class Doubts:
    """A list of ids in doubt, and the duty that empties it. Its thread lives while the list does."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store, self._clock = store, clock
        self._lock = threading.Lock()
        #: Under the lock: (not before, in seconds of the clock; id; looks left).
        self._waiting: deque[tuple[float, str, int]] = deque(maxlen=MOST)
        self._thread: threading.Thread | None = None

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, job_id: str) -> None:
        """Cancel this job as soon as the store answers, and once more later."""
        with self._lock:
            self._waiting.append((self._clock.monotonic(), job_id, 2))
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="doubts", daemon=True)
                self._thread.start()

    def one_pass(self) -> float | None:
        """Cancel what is due; seconds until the next pass, None when nothing is left. Raises StoreUnavailable."""
        while True:
            with self._lock:
                if not self._waiting:
                    return None
                due_s, job_id, looks = self._waiting[0]
                now_s = self._clock.monotonic()
                if due_s > now_s:
                    return due_s - now_s
            answer = self._store.cancel(job_id)
            log.info("admit.in_doubt", job=job_id, cancel=answer.value)
            with self._lock:
                self._waiting.popleft()
                if looks > 1:
                    self._waiting.append((now_s + SECOND_LOOK_S, job_id, looks - 1))

    def _run(self) -> None:
        rest = threading.Event()
        while True:
            try:
                rest_s = self.one_pass()
            except StoreUnavailable:
                rest_s = REST_S
            with self._lock:
                if rest_s is None and not self._waiting:
                    self._thread = None
                    return
            rest.wait(rest_s or 0)
