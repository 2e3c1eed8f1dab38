"""The places of the processes that read documents: tenants take turns, and none has more than one."""

import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass


class ParsersBusy(Exception):
    """The processes of this door read other documents, as many as they may at once."""


@dataclass(frozen=True, eq=False, slots=True)
class _Ticket:
    tenant: str


class ParserPlaces:
    """The places of one process, for all of its threads or greenlets."""

    def __init__(self, places: int) -> None:
        self._places = self._free = places
        self._changed = threading.Condition()
        self._waiting: deque[_Ticket] = deque()
        self._served: set[str] = set()

    @contextmanager
    def place(self, tenant: str, until: float) -> Iterator[None]:
        """Hold a place for a document of a tenant during the block.

        Raises ParsersBusy if no place becomes free by `until`, in seconds of time.monotonic().
        """
        ticket = _Ticket(tenant)
        with self._changed:
            self._waiting.append(ticket)
            try:
                if not self._changed.wait_for(lambda: self._next() is ticket, max(0.0, until - time.monotonic())):
                    raise ParsersBusy(f"{self._places} other documents are being read, or one of the tenant")
                self._free -= 1
                self._served.add(tenant)
            finally:
                self._waiting.remove(ticket)
                self._changed.notify_all()
        try:
            yield
        finally:
            with self._changed:
                self._free += 1
                self._served.discard(tenant)
                self._changed.notify_all()

    def _next(self) -> _Ticket | None:
        """Return whose turn it is: that of the first document whose tenant has no place."""
        if not self._free:
            return None
        return next((ticket for ticket in self._waiting if ticket.tenant not in self._served), None)
