"""The pause of the reference model, in which no lease ends because all workers were silent for a while."""

from collections.abc import Iterable
from dataclasses import dataclass

GAP_MS = 2_000


@dataclass
class Hold:
    """Until when no lease ends, and the last heartbeat before the gap for which this is so."""

    heartbeat_ms: int | None = None
    until_ms: int = 0

    def note_gap(self, now_ms: int, heartbeats_ms: Iterable[int], lease_ms: int) -> None:
        """Begin a pause if the last heartbeat is too long ago, once for each gap and only after a rest."""
        known = [heartbeat_ms for heartbeat_ms in heartbeats_ms if heartbeat_ms >= 0]
        gap_ms = now_ms - max(known, default=now_ms)
        rested = now_ms - self.until_ms >= lease_ms
        if gap_ms > GAP_MS and self.heartbeat_ms != max(known) and (rested or gap_ms >= lease_ms):
            self.heartbeat_ms = max(known)
            self.until_ms = now_ms + lease_ms
