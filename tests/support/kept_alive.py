"""Keeps the workers of a test live while real time passes: a slow machine takes longer than the five seconds of a beat.

A worker that has beaten once through a store beats again before the store is asked whether it is live.
"""

import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from shared.jobs.job import ClaimRef
from shared.jobs.outcomes import Refusal, Refused
from shared.store import keys
from shared.store.replies import HeartbeatReport, Renewed
from shared.store.store import Store

#: After this time without a beat, in seconds, a worker beats again.
_AGAIN_S = 2.5
#: For how long a beat lasts, in seconds.
_LASTS_S = 5.0
#: The methods whose answers depend on the workers that are live.
_ASKING = ("admit", "quote", "snapshot", "overview")


class _KeptAlive:
    """The last beat of each worker of a store. Where the test has moved the store's time since, no beat follows."""

    def __init__(self, store: Store) -> None:
        self._store, self._client = store, store.client
        self._lock = threading.Lock()
        self._beats: dict[str, tuple[HeartbeatReport, Sequence[ClaimRef], float, bytes | None]] = {}

    def renew(self, report: HeartbeatReport, held: Sequence[ClaimRef]) -> Renewed:
        """Send a beat, and remember it."""
        renewed = type(self._store).renew(self._store, report, held)
        with self._lock:
            self._beats[report.worker] = report, tuple(held), time.monotonic(), self._client.get(keys.clock())
        return renewed

    def beat_again(self, after_s: float = _AGAIN_S) -> bool:
        """Repeat the older beats of workers that the store still has; return whether there were any."""
        with self._lock:
            late = [beat for beat in self._beats.values() if time.monotonic() - beat[2] > after_s]
        repeated = False
        for report, held, _, clock in late:
            if self._client.exists(keys.worker(report.worker)) and self._client.get(keys.clock()) == clock:
                self.renew(report, held)
                repeated = True
        return repeated


def keep_alive(store: Store) -> None:
    """Let the workers that beat through this object stay live as long as their test runs."""
    kept = _KeptAlive(store)

    def after_beats(name: str) -> Callable[..., Any]:
        def asked(*arguments: Any, **named: Any) -> Any:
            kept.beat_again()
            while True:
                # Looked up late: a test may have replaced the method.
                answer = getattr(type(store), name)(store, *arguments, **named)
                # The call itself may have taken longer than the beat lasts.
                is_refused = isinstance(answer, Refused) and answer.reason is Refusal.NO_WORKER
                if not (is_refused and kept.beat_again(after_s=_LASTS_S)):
                    return answer

        return asked

    for name in _ASKING:
        setattr(store, name, after_beats(name))
    setattr(store, "renew", kept.renew)  # noqa: B010 - a method is replaced
