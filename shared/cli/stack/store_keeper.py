"""Restarts the embedded store of `penstock up` whenever it dies.

While the store is down, the door answers `store_unavailable`, and workers keep the results that they have not written
yet. If a restart fails, the other processes keep running and the restart is tried again later, because the cause may
be temporary, such as a full disk.
"""

import time
from collections.abc import Callable

from shared.cli.stack.processes import FIRST_PAUSE_S, LONGEST_PAUSE_S, PAUSE_RESET_S, Report
from shared.errors import EmbeddedStoreError
from shared.store.embedded import EmbeddedStore


class StoreKeeper:
    """Restarts one store, with pauses between the restarts. Only the main thread of `up` may call its methods."""

    def __init__(self, store: EmbeddedStore, report: Report, should_abort: Callable[[], bool]) -> None:
        self._store, self._report, self._should_abort = store, report, should_abort
        self._pause_s = 0.0
        self._restarted_s = float("-inf")

    def restart_if_dead(self) -> None:
        """Restart the store if it is dead and the pause after its last restart is over.

        The first restart happens without a pause, and so does one that is more than PAUSE_RESET_S after the previous
        restart. Otherwise the pause begins at FIRST_PAUSE_S and doubles with each restart, up to LONGEST_PAUSE_S.
        """
        if self._store.alive():
            return
        since_restart_s = time.monotonic() - self._restarted_s
        if since_restart_s > PAUSE_RESET_S:
            self._pause_s = 0.0
        elif since_restart_s < self._pause_s:
            return
        self._report("store: died; starting it again")
        try:
            self._store.revive(should_abort=self._should_abort)
        except EmbeddedStoreError as error:
            self._report(f"store: {error}")
        self._restarted_s = time.monotonic()
        self._pause_s = min(max(2 * self._pause_s, FIRST_PAUSE_S), LONGEST_PAUSE_S)
