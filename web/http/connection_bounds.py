"""Bound the connections, requests and bodies that are open in one HTTP process, with a reserve for /health.

The file also resolves the settings whose value is `auto`. Nothing here does I/O.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum

from shared.errors import ConfigError
from shared.settings.door import DoorSettings
from shared.settings.setting import AUTO
from web.http.api_errors import ApiError

#: Connections beyond the bound that are still read, in all and for one address. On each of them one small request is
#: answered: /health and /health/ready as always, any other with an error. A prober opens one connection at a time.
RESERVE, RESERVE_PER_ADDRESS = 256, 16
#: The requests that are answered beyond every bound.
PROBE_PATHS = frozenset({"/health", "/health/ready"})
#: The default of PENSTOCK_MAX_CONNECTIONS, if enough files may be open.
_MOST_CONNECTIONS = 10_000
#: Open files that are left for the store, the log and the listening socket.
_OTHER_FILES = 128
#: How many documents one process loads into collections at once: of one tenant, and in all. A load holds the document.
_TENANT_LOADS, _LOADS = 2, 8
#: How long a client should wait after it was turned away, in ms. A place becomes free as soon as any request ends.
_RETRY_MS = 1_000


class DoorBound(StrEnum):
    """A bound of one HTTP process; its value is the error code that the client gets, and the metric's label."""

    CONNECTIONS = "connections_full"
    ADDRESS = "address_full"
    HEADS = "heads_full"
    TENANT_REQUESTS = "tenant_requests_full"
    TENANT_BODIES = "tenant_bodies_full"
    BODIES = "bodies_full"
    CONSOLE = "console_full"
    LOADS = "loads_full"


class ConnectionService(StrEnum):
    """The service for a connection: all its requests, one small request, or only a refusal."""

    REGULAR = "regular"
    RESERVED = "reserved"
    NONE = "none"


@dataclass(frozen=True)
class ConnectionLimits:
    """The bounds on the open connections of one process: in all, and for one client address."""

    total: int
    per_address: int


def connection_limits(settings: DoorSettings, max_files: int) -> ConnectionLimits:
    """Return the bounds for these settings, given how many files the process may have open.

    There are never more connections than open files allow: a process without a free file could not even reach the
    store.
    """
    wanted = _MOST_CONNECTIONS if settings.max_connections == AUTO else settings.max_connections
    total = max(1, min(wanted, max_files - 2 * RESERVE - _OTHER_FILES))
    share = settings.max_address_connections
    return ConnectionLimits(total, max(1, total // 8) if share == AUTO else share)


def turned_away(bound: DoorBound, message: str) -> ApiError:
    """Return the error for a connection or request that would exceed a bound. It asks the client to retry."""
    headers = {"x-should-retry": "true", "retry-after-ms": str(_RETRY_MS), "Retry-After": str(_RETRY_MS // 1000)}
    return ApiError(bound.value, message, headers=headers)


class ConnectionBounds:
    """Counts the open connections of one process. All methods run in the event loop, so they need no lock."""

    def __init__(self, limits: ConnectionLimits) -> None:
        self.limits = limits
        self.open = 0
        self._reserved = 0
        self._by_address: Counter[str] = Counter()
        self._reserved_by_address: Counter[str] = Counter()

    def enter(self, address: str | None) -> tuple[ConnectionService, DoorBound | None]:
        """Count a new connection; return its service and, unless that is regular, the bound that is exceeded.

        `address` is the key under which the client's connections are counted, None for a proxy, which has no bound of
        its own. `leave` must be called with the same address and service when the connection is closed.
        """
        mine = self._by_address.get(address, 0) if address is not None else 0
        exceeded = None
        if self.open - self._reserved >= self.limits.total:
            exceeded = DoorBound.CONNECTIONS
        if mine >= self.limits.per_address:
            exceeded = DoorBound.ADDRESS
        service = ConnectionService.REGULAR
        if exceeded is not None:
            my_reserved = self._reserved_by_address.get(address, 0) if address is not None else 0
            full = self._reserved >= RESERVE or my_reserved >= RESERVE_PER_ADDRESS
            service = ConnectionService.NONE if full else ConnectionService.RESERVED
        self._count(address, service, 1)
        return service, exceeded

    def leave(self, address: str | None, service: ConnectionService) -> None:
        """Count a connection as closed."""
        self._count(address, service, -1)

    def _count(self, address: str | None, service: ConnectionService, change: int) -> None:
        if service is ConnectionService.NONE:
            return
        is_reserved = service is ConnectionService.RESERVED
        self.open += change
        self._reserved += change * is_reserved
        if address is None:
            return
        for counter in (self._by_address, self._reserved_by_address)[: 1 + is_reserved]:
            counter[address] += change
            if not counter[address]:
                del counter[address]

    def describe(self, bound: DoorBound) -> str:
        """Return the message for a connection that would exceed this bound."""
        if bound is DoorBound.ADDRESS:
            return f"your address has {self.limits.per_address} open connections to this process already"
        return f"this process has {self.limits.total} open connections already"


#: The default of PENSTOCK_MAX_OPEN_BODY_BYTES, and how many of the longest bodies fit into it at least.
_OPEN_BODY_BYTES, _LONGEST_BODIES = 64 * 1_048_576, 4


@dataclass
class Budget:
    """Amounts that several holders have taken: at most `per_holder` each and `total` together.

    All methods run in the event loop, so they need no lock.
    """

    per_holder: int
    total: int
    taken: int = 0
    _by_holder: Counter[str] = field(default_factory=Counter)

    def fits(self, amount: int) -> bool:
        """Return whether this amount could be taken by a holder that has as much as is allowed."""
        return self.taken + amount <= self.total

    def fits_holder(self, holder: str, amount: int) -> bool:
        """Return whether the holder's own bound allows this amount."""
        return self._by_holder.get(holder, 0) + amount <= self.per_holder

    def take(self, holder: str, amount: int = 1) -> Callable[[], None]:
        """Take an amount and return the function that gives it back; only its first call has an effect."""
        self.taken += amount
        self._by_holder[holder] += amount
        is_taken = True

        def give_back() -> None:
            nonlocal is_taken
            if not is_taken:
                return
            is_taken = False
            self.taken -= amount
            self._by_holder[holder] -= amount
            if not self._by_holder[holder]:
                del self._by_holder[holder]

        return give_back


@dataclass(frozen=True)
class RequestBounds:
    """The open requests of one HTTP process."""

    tenant_requests: Budget
    #: The requests of clients behind trusted proxies. The connections of all other clients are counted instead.
    address_requests: Budget
    bodies: Budget
    loads: Budget = field(default_factory=lambda: Budget(_TENANT_LOADS, _LOADS))

    def open_tenant_request(self, tenant: str) -> Callable[[], None]:
        """Count a request of the tenant; return the function that counts it as ended. Raises ApiError (429)."""
        return _open_request(self.tenant_requests, tenant, f"tenant {tenant!r}", DoorBound.TENANT_REQUESTS)

    def open_address_request(self, address: str) -> Callable[[], None]:
        """Count a request of a client address; return the function that counts it as ended. Raises ApiError (429)."""
        return _open_request(self.address_requests, address, "your address", DoorBound.ADDRESS)

    def open_body(self, tenant: str, length: int) -> Callable[[], None]:
        """Count the bytes of a body that will be read; return the function that frees them.

        Raises ApiError (429 or 503).
        """
        if not self.bodies.fits_holder(tenant, length):
            message = f"tenant {tenant!r} may send bodies of {self.bodies.per_holder} bytes at once to this process"
            raise turned_away(DoorBound.TENANT_BODIES, message)
        if not self.bodies.fits(length):
            message = f"this process reads bodies of at most {self.bodies.total} bytes at once"
            raise turned_away(DoorBound.BODIES, message)
        return self.bodies.take(tenant, length)

    def open_load(self, tenant: str) -> Callable[[], None]:
        """Count a document that is loaded; return the function that counts it as ended. Raises ApiError (429)."""
        if not self.loads.fits_holder(tenant, 1) or not self.loads.fits(1):
            mine, total = self.loads.per_holder, self.loads.total
            message = f"this process loads {total} documents at once, and {mine} of tenant {tenant!r}"
            raise turned_away(DoorBound.LOADS, message)
        return self.loads.take(tenant)


def _open_request(budget: Budget, holder: str, who: str, bound: DoorBound) -> Callable[[], None]:
    if not budget.fits_holder(holder, 1):
        raise turned_away(bound, f"{who} has {budget.per_holder} open requests at this process already")
    return budget.take(holder)


def request_bounds(settings: DoorSettings, connections: ConnectionLimits) -> RequestBounds:
    """Return the bounds for these settings. Raises ConfigError if the longest body would not fit."""
    longest = settings.max_body_bytes
    total = settings.max_open_body_bytes
    if total == AUTO:
        total = max(_OPEN_BODY_BYTES, _LONGEST_BODIES * longest)
    per_tenant = total // 4 if settings.max_tenant_body_bytes == AUTO else settings.max_tenant_body_bytes
    for name, value in (
        ("PENSTOCK_MAX_OPEN_BODY_BYTES", total),
        ("PENSTOCK_MAX_TENANT_BODY_BYTES", per_tenant),
    ):
        if value < longest:
            raise ConfigError(f"{name}={value} is less than PENSTOCK_MAX_BODY_BYTES={longest}: no such body would fit")
    requests = settings.max_tenant_requests
    if requests == AUTO:
        requests = max(1, connections.total // 4)
    return RequestBounds(
        tenant_requests=Budget(requests, connections.total),
        address_requests=Budget(connections.per_address, connections.total),
        bodies=Budget(per_tenant, total),
    )
