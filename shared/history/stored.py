"""Calls the scripts of the history, and reads its points from the store."""

from typing import Any

import redis

from shared import store_clock
from shared.history.points import RINGS, Point, in_turns, parse
from shared.store import keys, scripts
from shared.store.decode import text
from shared.store.redis_errors import store_faults

#: How many points one call of the script history_erase examines.
_ERASED_TOGETHER = 64


class StoredHistory:
    """The history in the store. Methods raise StoreUnavailable if the store does not answer."""

    def __init__(self, client: redis.Redis) -> None:
        self._client = client

    def write_point(self, limit_bytes: int) -> tuple[int, bool, int]:
        """Write the next point if it is due.

        Return the time until the next one is due in ms, whether this call wrote points, and the counts in them.
        """
        with store_faults(self._client):
            _, (due_in_ms, wrote, moved) = scripts.load("history_point").call(self._client, limit_bytes=limit_bytes)
        return due_in_ms, wrote == 1, moved

    def read(self, length_s: int, from_ms: int, to_ms: int) -> list[Point]:
        """Return the points of one length in a span of time, oldest first. Times without a point are left out.

        `length_s` is one of RINGS. No more points are read than are kept.
        """
        kept = dict(RINGS)[length_s]
        length_ms = 1_000 * length_s
        last = to_ms // length_ms
        starts = [length_ms * i for i in range(max(from_ms // length_ms, last - kept + 1), last + 1)]
        if not starts:
            return []
        with store_faults(self._client):
            stored: Any = self._client.hmget(keys.history(), [_field(length_s, start) for start in starts])
        found = in_turns((start, raw) for start, raw in zip(starts, stored, strict=True) if raw is not None)
        points = [(start, parse(text(raw))) for start, raw in found]
        # In the place of a point that was not written is one of an earlier time.
        return [point for start, point in points if point is not None and point.start_ms == start]

    def now_ms(self) -> int:
        """Return the store's time in ms."""
        with store_faults(self._client), self._client.pipeline(transaction=True) as pipe:
            pipe.time()
            pipe.mget(keys.of_time())
            return store_clock.parse(*pipe.execute()).now_ms

    def erase(self, tenant: str, limit_bytes: int) -> int:
        """Make the tenant's part of every point a part of the rest. Return the number of points that named it."""
        fields = [f"{length_s}:{place}" for length_s, points in RINGS for place in range(points)]
        erased = 0
        for i in range(0, len(fields), _ERASED_TOGETHER):
            with store_faults(self._client):
                erased += scripts.load("history_erase").call(
                    self._client, tenant=tenant, limit_bytes=limit_bytes, fields=fields[i : i + _ERASED_TOGETHER]
                )[1][0]
        return erased


def _field(length_s: int, start_ms: int) -> str:
    return f"{length_s}:{start_ms // (1_000 * length_s) % dict(RINGS)[length_s]}"
