"""Where other threads meet the engine's: jobs and cancels come in, and what they will take is promised."""

import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from workers.engine.backend import Prepared
from workers.engine.events import FreeCapacity

#: One job in hand for so many slots: a job in hand is claimed before the end of the one whose slot it gets has
#: trued up its tenant's service, so it is taken out of the turns by that much.
_SLOTS_FOR_ONE_AHEAD = 8


@dataclass(frozen=True)
class Cancel:
    """Someone wants a job's end. `drop`: its lease was lost, and nobody settles it."""

    key: str
    drop: bool
    #: When it was asked for, by the engine's clock.
    asked_s: float


def most_ahead(slots: int) -> int:
    """Most jobs that may be handed over for slots that are not free yet."""
    return slots // _SLOTS_FOR_ONE_AHEAD


@dataclass(frozen=True)
class Recall:
    """Whoever hands jobs over wants back those that have no slot."""


class Inbox:
    """All that threads share with the engine, under one lock. Any thread may call any method.

    A promise is made when a job comes in and taken back when it has ended, so that `room` holds
    after all that was submitted, wherever it is by now.
    """

    def __init__(self, slots: int, cells: int) -> None:
        self._slots, self._cells = slots, cells
        self._bell = threading.Condition()
        self._came: deque[Prepared | Cancel | Recall] = deque()
        #: Jobs in slots that end within a few steps; the engine's thread alone changes it.
        self._ending: set[str] = set()
        self._promised: dict[str, int] = {}
        self._promised_cells = 0

    def put(self, job: Prepared) -> None:
        """Take in a job. Raises ValueError when one of this key is inside."""
        key = job.spec.key
        with self._bell:
            if key in self._promised:
                raise ValueError(f"the engine has a job of key {key!r}")
            self._promised[key] = job.cells
            self._promised_cells += job.cells
            self._came.append(job)
            self._bell.notify()

    def cancel(self, key: str, *, drop: bool, asked_s: float) -> None:
        """Take in a cancel; for a job that is not inside it means nothing."""
        with self._bell:
            if key in self._promised:
                self._came.append(Cancel(key, drop, asked_s))
                self._bell.notify()

    def ended(self, key: str) -> None:
        """Take back an ended job's promise: its slot is free now, and no longer one that will be."""
        with self._bell:
            self._ending.discard(key)
            self._promised_cells -= self._promised.pop(key)

    def end_soon(self, keys: set[str]) -> bool:
        """Say which jobs end within a few steps, and no others do. Whether there is one of which it was not known."""
        with self._bell:
            before, self._ending = self._ending, keys
        return not keys <= before

    def recall(self) -> None:
        """Take in that jobs without a slot are wanted back."""
        with self._bell:
            self._came.append(Recall())
            self._bell.notify()

    def room(self) -> FreeCapacity:
        """Slots and cells that nobody was promised."""
        with self._bell:
            free = self._slots - len(self._promised)
            soon = free + min(most_ahead(self._slots), len(self._ending)) - max(0, free)
            return FreeCapacity(max(0, free), max(0, self._cells - self._promised_cells), max(0, soon))

    def take(self) -> list[Prepared | Cancel | Recall]:
        """All that came since the last call, in order."""
        if not self._came:
            return []
        with self._bell:
            came = list(self._came)
            self._came.clear()
            return came

    def wake(self) -> None:
        """Make a waiting engine look at its stop event."""
        with self._bell:
            self._bell.notify()

    def wait(self, stop: threading.Event) -> None:
        """Until something came, or `stop` is set and `wake` called."""
        with self._bell:
            while not self._came and not stop.is_set():
                self._bell.wait()

    def wait_for_company(self, stop: threading.Event, now: Callable[[], float], timeout_s: float) -> None:
        """Until every slot is promised, or `timeout_s` is over by `now`, or `stop` is set."""
        until = now() + timeout_s
        with self._bell:
            while len(self._promised) < self._slots and not stop.is_set() and (left_s := until - now()) > 0:
                self._bell.wait(left_s)
