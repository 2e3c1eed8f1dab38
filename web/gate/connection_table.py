"""The open connections of one gate, bounded in all and for each client address."""

import itertools
import threading
from collections import defaultdict
from enum import StrEnum
from typing import Protocol


class GateBound(StrEnum):
    """A bound on the gate's connections; its value is the name of its setting, and the metric's label."""

    CONNECTIONS = "PENSTOCK_GATE_MAX_CONNECTIONS"
    ADDRESS = "PENSTOCK_GATE_MAX_CONNECTIONS_PER_ADDRESS"


class TabledConnection(Protocol):
    """The part of a connection that the table uses."""

    def abort(self) -> None:
        """End the connection at once; must not block."""
        ...


class ConnectionTable:
    """Admits connections up to two bounds.

    If a bound is reached, the connection that has been a stranger the longest is ended in favor of the new one, of the
    same address if its bound is reached. A client that shows its key at once therefore gets a connection even while
    strangers occupy all others. Connections with a valid key are never ended; if there are only such, the new one is
    refused. May be used on any thread.
    """

    def __init__(self, max_in_all: int, max_per_address: int) -> None:
        self._max_in_all, self._max_per_address = max_in_all, max_per_address
        self._lock = threading.Lock()
        #: All are changed only while `_lock` is held. The address is None for connections that are not limited by it.
        self._addresses: dict[TabledConnection, str | None] = {}
        self._by_address: defaultdict[str, set[TabledConnection]] = defaultdict(set)
        #: The strangers, with ascending numbers in the order in which they became strangers.
        self._strangers: dict[TabledConnection, int] = {}
        self._numbers = itertools.count()

    def add(self, connection: TabledConnection, address: str | None, *, stranger: bool) -> GateBound | None:
        """Add a connection; return None, or the bound that refuses it."""
        victim = None
        with self._lock:
            mine = self._by_address.get(address, ()) if address is not None else ()
            if len(mine) >= self._max_per_address:
                victim = min(self._strangers.keys() & mine, key=self._strangers.__getitem__, default=None)
                if victim is None:
                    return GateBound.ADDRESS
            elif len(self._addresses) >= self._max_in_all:
                victim = next(iter(self._strangers), None)
                if victim is None:
                    return GateBound.CONNECTIONS
            if victim is not None:
                self._remove(victim)
            self._addresses[connection] = address
            if address is not None:
                self._by_address[address].add(connection)
            if stranger:
                self._strangers[connection] = next(self._numbers)
        if victim is not None:
            victim.abort()
        return None

    def mark(self, connection: TabledConnection, *, stranger: bool) -> None:
        """Note that a connection has shown a valid key, or that its key is no longer valid."""
        with self._lock:
            self._strangers.pop(connection, None)
            if stranger and connection in self._addresses:
                self._strangers[connection] = next(self._numbers)

    def remove(self, connection: TabledConnection) -> None:
        """Remove a connection that has ended; it may have been removed before in favor of another."""
        with self._lock:
            self._remove(connection)

    def _remove(self, connection: TabledConnection) -> None:
        address = self._addresses.pop(connection, None)
        self._strangers.pop(connection, None)
        if address is not None:
            self._by_address[address].discard(connection)
            if not self._by_address[address]:
                del self._by_address[address]
