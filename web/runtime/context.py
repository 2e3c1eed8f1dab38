"""What all routes of one app, or all connections of one gate, share: settings, the store, what this process knows."""

from dataclasses import dataclass

from shared.clock import Clock
from shared.jobs.job import JobView
from shared.settings.settings import Settings
from shared.store.api_keys import KeyRing
from shared.store.store import Store
from shared.store.tenants import Tenants
from web.http.process_metrics import DoorMetrics
from web.runtime.admin_key import load_admin_key
from web.runtime.credential_cache import Standing
from web.runtime.event_hub import Hub
from web.runtime.in_doubt import Doubts
from web.runtime.model_pools import Pools
from web.runtime.ticket_signer import Tickets


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
