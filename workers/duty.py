"""One duty, one thread, one shape: start, one pass after another, stop; the pass is callable alone.

A pass that finds the store away is tried again, later each time; a pass that fails by a fault of our
own is logged and tried again too, because the jobs that run are worth more than a clean stack. Only
a duty whose every pass fails ends the process.
"""

import threading
from collections.abc import Callable
from typing import Protocol

import structlog

from shared.errors import StoreUnavailable

log = structlog.get_logger()

#: First and longest rest while the store is away: soon enough not to lose a lease of a second, and
#: few enough calls not to hinder a store that is loading its file.
FIRST_REST_S, LONGEST_REST_S = 0.05, 0.5

#: Passes in a row that may fail by a fault of our own: with the longest rest between them, some 10 s.
MAX_FAULTS = 20


class DutyWork(Protocol):
    """What a duty does over and over."""

    #: For logs and for the thread's name.
    name: str

    def one_pass(self) -> float | None:
        """Do what is due. How long to rest then, in seconds; None: until woken."""
        ...


class Duty:
    """Runs the passes of one duty on one thread until stopped."""

    def __init__(self, work: DutyWork, on_death: Callable[[str], None], wake: threading.Event | None = None) -> None:
        """`wake` ends a rest when it is set; without one the duty has its own."""
        self.work = work
        self._on_death = on_death
        self._wake = wake or threading.Event()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name=work.name, daemon=True)
        self._rest_s = FIRST_REST_S
        self._faults = 0

    def start(self) -> None:
        """Begin; the first pass runs at once."""
        self._thread.start()

    def wake(self) -> None:
        """End the rest now (not a rest that the store's absence asked for). Callable by any thread."""
        if not self._wake.is_set():
            self._wake.set()

    def ask_stop(self) -> None:
        """No pass begins from now on."""
        self._stopping.set()
        self._wake.set()

    def stop(self, timeout_s: float) -> bool:
        """Ask, and wait for the pass under way. Whether the thread has ended."""
        self.ask_stop()
        if self._thread.ident is None:
            return True
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _run(self) -> None:
        while not self._stopping.is_set():
            rest_s, wakeable = self.guarded_pass()
            if wakeable:
                self._wake.wait(rest_s)
                self._wake.clear()
            else:
                self._stopping.wait(rest_s)

    def guarded_pass(self) -> tuple[float | None, bool]:
        """One pass with its faults caught: how long to rest, and whether a wake may end the rest."""
        try:
            rest_s = self.work.one_pass()
        except StoreUnavailable as error:
            if self._rest_s == FIRST_REST_S:
                log.warning("store.away", duty=self.work.name, error=str(error))
            return self._longer_rest(), False
        except Exception:  # the duty outlives a fault: see the file's docstring
            self._faults += 1
            log.exception("duty.fault", duty=self.work.name, in_a_row=self._faults)
            if self._faults >= MAX_FAULTS:
                self._stopping.set()
                self._on_death(self.work.name)
            return self._longer_rest(), False
        if self._rest_s != FIRST_REST_S and self._faults == 0:
            log.info("store.back", duty=self.work.name)
        self._rest_s, self._faults = FIRST_REST_S, 0
        return rest_s, True

    def _longer_rest(self) -> float:
        rest_s = self._rest_s
        self._rest_s = min(LONGEST_REST_S, rest_s * 2)
        return rest_s
