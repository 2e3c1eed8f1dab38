"""What all routes of one app, or all connections of one gate, share: settings, the store, what this process knows."""

from dataclasses import dataclass

from flask import current_app

from shared.adminkey import load_admin_key
from shared.clock import Clock
from shared.config import Settings
from shared.job import JobView
from shared.keyring import KeyRing
from shared.store import Store
from shared.tenants import Tenants
from shared.tickets import Tickets
from web.doubts import Doubts
from web.hub import Hub
from web.pools import Pools
from web.standing import Standing
from web.telemetry import DoorMetrics

EXTENSION = "penstock"


@dataclass(frozen=True)
class Door:
    """The collaborators of the routes; none of them holds a job's state."""

    settings: Settings
    store: Store
    clock: Clock
    standing: Standing
    tickets: Tickets
    pools: Pools
    hub: Hub
    #: Admits without an answer, to be canceled when the store is back.
    doubts: Doubts
    metrics: DoorMetrics
    #: What opens operators' routes; "" where auth is open.
    admin_key: str

    def cancel(self, view: JobView) -> None:
        """Ask for the job's end. Raises StoreUnavailable."""
        with self.metrics.script("cancel"):
            self.store.cancel(view.id, tenant=view.tenant)


def make_door(settings: Settings, store: Store, clock: Clock) -> Door:
    """The collaborators of one process. Raises ConfigError when the admin key's file cannot be used."""
    return Door(
        settings=settings,
        store=store,
        clock=clock,
        standing=Standing(KeyRing(store.client), Tenants(store.client), clock),
        tickets=Tickets(store.client),
        pools=Pools(store, settings, clock),
        hub=Hub(store),
        doubts=Doubts(store, clock),
        metrics=DoorMetrics(clock),
        admin_key="" if settings.auth == "open" else load_admin_key(settings),
    )


def door() -> Door:
    """The door of the current app."""
    found: Door = current_app.extensions[EXTENSION]
    return found
