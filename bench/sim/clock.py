"""A client of the store whose every script call says what time it is: virtual time over the real scripts.

The store's time is held by one key (shared/lua/lib/clock.lua). It is set in the same packet as the call that
follows it, over one connection, so that a moment costs no round trip.
"""

from typing import Any

import redis

from shared import keys

#: Where virtual time begins, in ms since the epoch: far from anything that is really happening.
EPOCH_MS = 1_800_000_000_000


class VirtualTimeClient(redis.Redis):
    """`now_ms` is virtual time since the start of the run; whoever owns the run moves it, never back."""

    @classmethod
    def over(cls, client: redis.Redis) -> "VirtualTimeClient":
        """Over the connections of a client of the same store, which is emptied."""
        client.flushall()
        virtual: VirtualTimeClient = cls(connection_pool=client.connection_pool)
        virtual.now_ms = 0.0
        virtual._told_ms = -1
        virtual._line = client.connection_pool.get_connection()
        return virtual

    now_ms: float
    _told_ms: int
    _line: Any

    def evalsha(self, sha: str, numkeys: int, *args: Any) -> Any:
        """EVALSHA at the held moment."""
        line, now_ms = self._line, EPOCH_MS + int(self.now_ms)
        if now_ms == self._told_ms:
            line.send_command("EVALSHA", sha, numkeys, *args)
            return line.read_response()
        clock = ("SET", keys.clock(), f"={now_ms}")
        line.send_packed_command(line.pack_commands([clock, ("EVALSHA", sha, numkeys, *args)]))
        line.read_response()
        self._told_ms = now_ms
        return line.read_response()

    def done(self) -> None:
        """Give the connection back."""
        self.connection_pool.release(self._line)
