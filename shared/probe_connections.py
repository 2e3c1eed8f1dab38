"""The open connections of a small listener for health probes and scrapes, which makes room for new ones."""

import threading
from collections import OrderedDict
from typing import Generic, TypeVar

_Connection = TypeVar("_Connection")


class ProbeConnections(Generic[_Connection]):
    """Holds at most `max_in_all` connections, and `max_per_address` of one client address.

    A probe sends its request at once and is answered within milliseconds. If a bound is reached, a new connection
    therefore replaces the oldest one that has not sent a request; if all have sent one, the oldest one. If the bound of
    an address is reached, one of its own connections is replaced. May be used on any thread.
    """

    def __init__(self, max_in_all: int, max_per_address: int) -> None:
        self._max_in_all, self._max_per_address = max_in_all, max_per_address
        self._lock = threading.Lock()
        #: The addresses of the connections without and with a request, the oldest first; guarded by the lock.
        self._silent: OrderedDict[_Connection, str] = OrderedDict()
        self._asking: OrderedDict[_Connection, str] = OrderedDict()

    def add(self, connection: _Connection, address: str) -> _Connection | None:
        """Add a new connection; return the one that it replaces, which the caller must end, or None."""
        with self._lock:
            everyone = [*self._silent.items(), *self._asking.items()]
            of_address = [known for known, known_address in everyone if known_address == address]
            victim = None
            if len(of_address) >= self._max_per_address:
                victim = of_address[0]
            elif len(everyone) >= self._max_in_all:
                victim = everyone[0][0]
            if victim is not None:
                self._remove(victim)
            self._silent[connection] = address
            return victim

    def mark_request(self, connection: _Connection) -> None:
        """Note that a connection has sent a whole request."""
        with self._lock:
            if (address := self._silent.pop(connection, None)) is not None:
                self._asking[connection] = address

    def remove(self, connection: _Connection) -> None:
        """Remove a connection that has ended; it may have been replaced before."""
        with self._lock:
            self._remove(connection)

    def __len__(self) -> int:
        return len(self._silent) + len(self._asking)

    def _remove(self, connection: _Connection) -> None:
        self._silent.pop(connection, None)
        self._asking.pop(connection, None)
