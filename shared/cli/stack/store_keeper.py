"""Keeps the embedded store of one `up` alive: started again when it dies, again and again where it cannot.

The door answers `store_unavailable` meanwhile, and workers keep what they have to say. A disk that is
full today has room again tomorrow: that is no reason to end what runs.
"""

import time
from collections.abc import Callable

from shared.cli.stack.processes import FIRST_PAUSE_S, LONGEST_PAUSE_S, SETTLED_S, Say
from shared.errors import EmbeddedStoreError
from shared.store.embedded import EmbeddedStore


class StoreKeeper:
    """The store's deaths and the pauses between its starts; used by the main thread of `up` only."""

    def __init__(self, store: EmbeddedStore, say: Say, given_up: Callable[[], bool]) -> None:
        self._store, self._say, self._given_up = store, say, given_up
        self._pause_s = 0.0
        self._started_s = float("-inf")

    def tend(self) -> None:
        """Start the store again if it is dead and its pause is over: none after a long life, doubled by each death."""
        if self._store.alive():
            return
        lived_s = time.monotonic() - self._started_s
        if lived_s > SETTLED_S:
            self._pause_s = 0.0
        elif lived_s < self._pause_s:
            return
        self._say("store: died; starting it again")
        try:
            self._store.revive(given_up=self._given_up)
        except EmbeddedStoreError as error:
            self._say(f"store: {error}")
        self._started_s = time.monotonic()
        self._pause_s = min(max(2 * self._pause_s, FIRST_PAUSE_S), LONGEST_PAUSE_S)
