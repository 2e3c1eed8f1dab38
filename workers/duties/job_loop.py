"""One thread moves this worker's jobs: deliver, then take in, always in this order.

Delivery first, because the end of a job frees its slot and trues up its tenant's service, and the
next claim must see both. While anything that is owed cannot be told, nothing is claimed.
"""

from collections.abc import Callable

from shared.clock import Clock
from workers.duties.claimer import Intake
from workers.duties.delivery import Delivery


class Rounds:
    """The passes of delivery and intake, joined."""

    name = "rounds"

    def __init__(self, delivery: Delivery, intake: Intake, *, clock: Clock, on_room: Callable[[], None]) -> None:
        self._delivery = delivery
        self._intake = intake
        self._clock = clock
        self._on_room = on_room
        self._freed_before = 0

    def one_pass(self) -> float | None:
        """Deliver what is due, then claim; until when to rest. Raises StoreUnavailable."""
        text_due_s = self._delivery.one_pass()
        freed = self._delivery.freed != self._freed_before
        self._freed_before = self._delivery.freed
        rest_s = self._intake.one_pass(freed=freed)
        if self._intake.has_room:
            self._on_room()
        if text_due_s is None:
            return rest_s
        until_text_s = max(0.0, text_due_s - self._clock.monotonic())
        return until_text_s if rest_s is None else min(rest_s, until_text_s)
