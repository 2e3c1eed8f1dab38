"""Bound what a tenant, or a client behind a proxy, has open in one HTTP process: requests, and bytes of bodies.

The file also resolves the settings whose value is `auto`. Nothing here does I/O.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from shared.errors import ConfigError
from shared.settings.door import DoorSettings
from shared.settings.setting import AUTO
from web.http.connection_bounds import ConnectionLimits, DoorBound, turned_away

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

    def open_tenant_request(self, tenant: str) -> Callable[[], None]:
        """Count a request of the tenant; return the function that counts it as ended. Raises ApiError (429)."""
        budget = self.tenant_requests
        if not budget.fits_holder(tenant, 1):
            message = f"tenant {tenant!r} has {budget.per_holder} open requests at this process already"
            raise turned_away(DoorBound.TENANT_REQUESTS, message)
        return budget.take(tenant)

    def open_address_request(self, address: str) -> Callable[[], None]:
        """Count a request of a client address; return the function that counts it as ended. Raises ApiError (429)."""
        budget = self.address_requests
        if not budget.fits_holder(address, 1):
            message = f"your address has {budget.per_holder} open requests at this process already"
            raise turned_away(DoorBound.ADDRESS, message)
        return budget.take(address)

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
