"""Keeps the claim of a batch, and gives way to the requests of this process, during long work on the batch."""

import time

from shared.store.batches.batches import Batches, BatchProgress, ClaimedBatch

#: How often the claim is prolonged during long work: after this part of it.
_PROLONG_AFTER = 0.2
#: How long this process works on a batch without a pause, in seconds, and the pause. gevent continues after a sleep of
#: zero before it has served the others.
_TURN_S, _PAUSE_S = 0.002, 1e-6


class ClaimHolder:
    """The claim of one batch, which lasts `lease_ms` from its last prolongation. `beat` must be called often."""

    def __init__(self, batches: Batches, claimed: ClaimedBatch, lease_ms: int) -> None:
        self._batches, self._claimed, self._lease_ms = batches, claimed, lease_ms
        self._prolonged_s = self._turn_began_s = time.monotonic()

    def beat(self) -> None:
        """Pause and prolong the claim if it is time. Raises StoreUnavailable, and ClaimLost if the claim has ended."""
        if time.monotonic() - self._turn_began_s >= _TURN_S:
            time.sleep(_PAUSE_S)
            self._turn_began_s = time.monotonic()
        if time.monotonic() - self._prolonged_s >= _PROLONG_AFTER * self._lease_ms / 1000:
            self._batches.write(self._claimed, BatchProgress(), rest_ms=self._lease_ms)
            self._prolonged_s = time.monotonic()
