"""Runs a duty on a thread of its own, one pass after another, until it is stopped; a pass can be called directly.

A pass that fails because the store is unavailable is retried with a growing delay. A pass that fails because of a bug
is logged and retried as well, because the running jobs matter more than a clean exit. The process ends only if
MAX_FAULTS passes in a row fail because of a bug, and only if the worker's own jobs depend on the duty. Any other duty
is then retried rarely: what fails in the store fails in every worker, and no restart mends it.
"""

import threading
from collections.abc import Callable
from typing import Protocol

from shared.errors import StoreUnavailable
from shared.log import get_logger

log = get_logger()

#: First and longest delay between retries after a failed pass. They are short enough that a lease of one second is not
#: lost, and long enough that the retries do not slow down a store that is loading its data file.
FIRST_RETRY_S, MAX_RETRY_S = 0.05, 0.5

#: How many passes in a row may fail because of a bug. At the longest retry delay, this takes about 10 s.
MAX_FAULTS = 20
#: Delay between retries of a duty on which no job of this worker depends, after MAX_FAULTS faults, in seconds.
RARE_RETRY_S = 30.0


class DutyWork(Protocol):
    """One pass of a duty."""

    #: The duty's name, which is used in logs and for the thread.
    name: str

    def one_pass(self) -> float | None:
        """Do the work that is due. Return the delay until the next pass in seconds, or None to wait for a wake."""
        ...


class Duty:
    """Runs the passes of one duty on one thread until stopped."""

    def __init__(
        self, work: DutyWork, on_failure: Callable[[str], None] | None, wake: threading.Event | None = None
    ) -> None:
        """Create a duty that calls `on_failure` with the duty's name after MAX_FAULTS faults in a row, and then ends.

        If `on_failure` is None, no job of this worker depends on the duty, and its passes are retried without end.
        Setting the event `wake` starts the next pass at once. If `wake` is None, the duty creates an event of its own.
        """
        self.work = work
        self._on_failure = on_failure
        self._wake = wake or threading.Event()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name=work.name, daemon=True)
        self._retry_s = FIRST_RETRY_S
        self._faults = 0

    def start(self) -> None:
        self._thread.start()

    def wake(self) -> None:
        """Start the next pass now, unless the duty waits to retry a failed pass. May be called from any thread."""
        if not self._wake.is_set():
            self._wake.set()

    def request_stop(self) -> None:
        self._stopping.set()
        self._wake.set()

    def stop(self, timeout_s: float) -> bool:
        """Request a stop and wait for the current pass to end. Return whether the thread has ended."""
        self.request_stop()
        if self._thread.ident is None:
            return True
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _run(self) -> None:
        while not self._stopping.is_set():
            delay_s, wakeable = self.guarded_pass()
            if wakeable:
                self._wake.wait(delay_s)
                self._wake.clear()
            else:
                self._stopping.wait(delay_s)

    def guarded_pass(self) -> tuple[float | None, bool]:
        """Run one pass and catch its exceptions.

        Return the delay until the next pass (None to wait for a wake), and whether a wake may cut the delay short.
        """
        try:
            delay_s = self.work.one_pass()
        except StoreUnavailable as error:
            if self._retry_s == FIRST_RETRY_S:
                log.warning("store.away", duty=self.work.name, error=str(error))
            return self._next_retry(), False
        except Exception:  # a bug does not end the duty: see the module docstring
            self._faults += 1
            log.exception("duty.fault", duty=self.work.name, in_a_row=self._faults)
            if self._faults < MAX_FAULTS:
                return self._next_retry(), False
            if self._on_failure is None:
                return RARE_RETRY_S, False
            self._stopping.set()
            self._on_failure(self.work.name)
            return self._next_retry(), False
        if self._retry_s != FIRST_RETRY_S and self._faults == 0:
            log.info("store.back", duty=self.work.name)
        self._retry_s, self._faults = FIRST_RETRY_S, 0
        return delay_s, True

    def _next_retry(self) -> float:
        delay_s = self._retry_s
        self._retry_s = min(MAX_RETRY_S, delay_s * 2)
        return delay_s
