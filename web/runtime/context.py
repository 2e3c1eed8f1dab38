"""What all routes of one app, or all connections of one gate, share: settings, the store, what this process knows."""

from dataclasses import dataclass

from shared.clock import Clock
from shared.jobs.job import JobView
from shared.settings.settings import Settings
from shared.store.api_keys import ApiKeys
from shared.store.store import Store
from shared.store.tenants import Tenants
from web.http.process_metrics import ProcessMetrics
from web.runtime.admin_key import load_admin_key
from web.runtime.credential_cache import CredentialCache
from web.runtime.event_hub import EventHub
from web.runtime.in_doubt import InDoubtJobs
from web.runtime.model_pools import ModelPools
from web.runtime.ticket_signer import TicketSigner


@dataclass(frozen=True)
class DoorContext:
    """The collaborators of the routes; none of them holds a job's state."""

    settings: Settings
    store: Store
    clock: Clock
    credentials: CredentialCache
    ticket_signer: TicketSigner
    pools: ModelPools
    event_hub: EventHub
    #: Admits without an answer, to be canceled when the store is back.
    in_doubt: InDoubtJobs
    metrics: ProcessMetrics
    #: What opens operators' routes; "" where auth is open.
    admin_key: str

    def cancel(self, view: JobView) -> None:
        """Ask for the job's end. Raises StoreUnavailable."""
        with self.metrics.time_script("cancel"):
            self.store.cancel(view.id, tenant=view.tenant)


def make_door_context(settings: Settings, store: Store, clock: Clock) -> DoorContext:
    """The collaborators of one process. Raises ConfigError when the admin key's file cannot be used."""
    return DoorContext(
        settings=settings,
        store=store,
        clock=clock,
        credentials=CredentialCache(ApiKeys(store.client), Tenants(store.client), clock),
        ticket_signer=TicketSigner(store.client),
        pools=ModelPools(store, settings, clock),
        event_hub=EventHub(store),
        in_doubt=InDoubtJobs(store, clock),
        metrics=ProcessMetrics(clock),
        admin_key="" if settings.auth == "open" else load_admin_key(settings),
    )
