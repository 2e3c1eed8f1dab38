"""The open connections of one gate, bounded in all and for each client address."""

import threading
from collections import OrderedDict, defaultdict
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
        self._counts: defaultdict[str, int] = defaultdict(int)
        self._strangers: OrderedDict[TabledConnection, None] = OrderedDict()
        self._strangers_by_address: defaultdict[str, OrderedDict[TabledConnection, None]] = defaultdict(OrderedDict)

    def add(self, connection: TabledConnection, address: str | None, *, stranger: bool) -> GateBound | None:
        """Add a connection; return None, or the bound that refuses it."""
        with self._lock:
            victims = []
            if address is not None and self._counts.get(address, 0) >= self._max_per_address:
                victims = list(self._strangers_by_address.get(address, ()))[:1]
                if not victims:
                    return GateBound.ADDRESS
            elif len(self._addresses) >= self._max_in_all:
                victims = [next(iter(self._strangers))] if self._strangers else []
                if not victims:
                    return GateBound.CONNECTIONS
            for victim in victims:
                self._remove(victim)
            self._addresses[connection] = address
            if address is not None:
                self._counts[address] += 1
            if stranger:
                self._add_stranger(connection, address)
        for victim in victims:
            victim.abort()
        return None

    def mark(self, connection: TabledConnection, *, stranger: bool) -> None:
        """Note that a connection has shown a valid key, or that its key is no longer valid."""
        with self._lock:
            if connection not in self._addresses:
                return
            address = self._addresses[connection]
            self._remove_stranger(connection, address)
            if stranger:
                self._add_stranger(connection, address)

    def remove(self, connection: TabledConnection) -> None:
        """Remove a connection that has ended; it may have been removed before in favor of another."""
        with self._lock:
            self._remove(connection)

    def _remove(self, connection: TabledConnection) -> None:
        if connection not in self._addresses:
            return
        address = self._addresses.pop(connection)
        self._remove_stranger(connection, address)
        if address is not None:
            self._counts[address] -= 1
            if not self._counts[address]:
                del self._counts[address]

    def _add_stranger(self, connection: TabledConnection, address: str | None) -> None:
        self._strangers[connection] = None
        if address is not None:
            self._strangers_by_address[address][connection] = None

    def _remove_stranger(self, connection: TabledConnection, address: str | None) -> None:
        self._strangers.pop(connection, None)
        if address is not None:
            strangers = self._strangers_by_address.get(address, OrderedDict())
            strangers.pop(connection, None)
            if not strangers:
                self._strangers_by_address.pop(address, None)
