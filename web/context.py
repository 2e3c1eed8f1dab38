"""What all routes of one app share: settings, the store, and what this process knows. Made once, by create_app."""

from dataclasses import dataclass

from flask import current_app

from shared.clock import Clock
from shared.config import Settings
from shared.keyring import KeyRing
from shared.store import Store
from shared.tenants import Tenants
from web.doubts import Doubts
from web.hub import Hub
from web.pools import Pools
from web.telemetry import DoorMetrics

EXTENSION = "penstock"


@dataclass(frozen=True)
class Door:
    """The collaborators of the routes; none of them holds a job's state."""

    settings: Settings
    store: Store
    clock: Clock
    keyring: KeyRing
    tenants: Tenants
    pools: Pools
    hub: Hub
    #: Admits without an answer, to be canceled when the store is back.
    doubts: Doubts
    metrics: DoorMetrics
    #: What opens operators' routes; "" where auth is open.
    admin_key: str


def door() -> Door:
    """The door of the current app."""
    found: Door = current_app.extensions[EXTENSION]
    return found
