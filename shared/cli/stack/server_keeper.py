"""Restarts the embedded store of `penstock up`, and the embedded database, whenever they die.

While the store is down, the door answers `store_unavailable`, and workers keep the results that they have not written
yet. If a restart fails, the other processes keep running and the restart is tried again later, because the cause may
be temporary, such as a full disk.
"""

import time
from collections.abc import Callable
from typing import Protocol

from shared.cli.stack.processes import FIRST_PAUSE_S, LONGEST_PAUSE_S, PAUSE_RESET_S, Report
from shared.errors import EmbeddedStoreError


class EmbeddedServer(Protocol):
    """A server that `up` has started: the store or the database."""

    @property
    def name(self) -> str: ...
    def alive(self) -> bool: ...
    def revive(self, *, should_abort: Callable[[], bool]) -> None: ...


class ServerKeeper:
    """Restarts one server, with pauses between the restarts. Only the main thread of `up` may call its methods."""

    def __init__(self, server: EmbeddedServer, report: Report, should_abort: Callable[[], bool]) -> None:
        self._server, self._report, self._should_abort = server, report, should_abort
        self._pause_s = 0.0
        self._restarted_s = float("-inf")

    def restart_if_dead(self) -> None:
        """Restart the server if it is dead and the pause after its last restart is over.

        The first restart happens without a pause, and so does one that is more than PAUSE_RESET_S after the previous
        restart. Otherwise the pause begins at FIRST_PAUSE_S and doubles with each restart, up to LONGEST_PAUSE_S.
        """
        if self._server.alive():
            return
        since_restart_s = time.monotonic() - self._restarted_s
        if since_restart_s > PAUSE_RESET_S:
            self._pause_s = 0.0
        elif since_restart_s < self._pause_s:
            return
        self._report(f"{self._server.name}: died; starting it again")
        try:
            self._server.revive(should_abort=self._should_abort)
        except EmbeddedStoreError as error:
            self._report(f"{self._server.name}: {error}")
        self._restarted_s = time.monotonic()
        self._pause_s = min(max(2 * self._pause_s, FIRST_PAUSE_S), LONGEST_PAUSE_S)
