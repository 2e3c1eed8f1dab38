"""The objects that all routes of one app, or all connections of one gate, share: settings, store client, caches."""

from dataclasses import dataclass

from shared.accounts.admin_keys import AdminKeys
from shared.accounts.api_keys import ApiKeys
from shared.accounts.tenants import Tenants
from shared.clock import Clock
from shared.jobs.job import JobView
from shared.settings.settings import Settings
from shared.store.batches.files import Files
from shared.store.batches.storage_location import files_folder
from shared.store.replies import Overview
from shared.store.store import Store
from shared.tracing.traces import Traces, make_traces
from web.http.client_address import TrustedProxies, parse_trusted_proxies
from web.http.connection_bounds import RequestBounds
from web.http.process_metrics import ProcessMetrics
from web.runtime.admin_key import load_admin_key
from web.runtime.credentials.credential_cache import CredentialCache
from web.runtime.credentials.failed_keys import FailedKeys
from web.runtime.credentials.key_watch import KeyWatch
from web.runtime.disk_threads import in_disk_thread
from web.runtime.event_hub import EventHub
from web.runtime.fleet.page import FleetPage
from web.runtime.in_doubt import InDoubtJobs
from web.runtime.model_pools import ModelPools
from web.runtime.process_page import ProcessPage
from web.runtime.shared_answer import SharedAnswer
from web.runtime.start import bounds_of_requests
from web.runtime.ticket_signer import ReturnTickets, TicketSigner
from web.runtime.usage_days import UsageDays
from web.sign_in.sign_in import SignIn, make_sign_in


@dataclass(frozen=True)
class DoorContext:
    """The objects that the routes or connections of one process share. None of them holds the state of a job."""

    settings: Settings
    store: Store
    files: Files
    clock: Clock
    trusted_proxies: TrustedProxies
    #: Counts the clients' open requests in this process; it changes only in the event loop.
    request_bounds: RequestBounds
    failed_keys: FailedKeys
    credentials: CredentialCache
    key_watch: KeyWatch
    ticket_signer: TicketSigner
    return_tickets: ReturnTickets
    pools: ModelPools
    event_hub: EventHub
    #: The jobs to cancel as soon as the store answers again, such as those whose offer got no answer.
    in_doubt: InDoubtJobs
    metrics: ProcessMetrics
    process_page: ProcessPage
    #: The answers of /health/ready and /metrics/fleet, which anybody may request as often as they like.
    readiness: SharedAnswer[Overview]
    fleet_page: FleetPage
    usage_days: UsageDays
    #: The key in the admin key file, which operators' routes accept; "" if PENSTOCK_AUTH is `open`.
    admin_key: str
    #: The trusted sources of users' names, and the roles of users.
    sign_in: SignIn
    traces: Traces

    def cancel(self, view: JobView) -> None:
        """Cancel a job on behalf of its tenant. Raises StoreUnavailable."""
        with self.metrics.time_script("cancel"):
            self.store.cancel(view.id, tenant=view.tenant)


def make_door_context(settings: Settings, store: Store, clock: Clock) -> DoorContext:
    """Create the context of one process.

    Raises ConfigError if the admin key file cannot be used, or if PENSTOCK_TRUSTED_PROXIES or PENSTOCK_SIGN_IN_PROXIES
    contains an invalid entry, or as `make_traces` does.
    """
    proxies = parse_trusted_proxies(settings.trusted_proxies)
    metrics = ProcessMetrics(clock)

    def read_overview() -> Overview:
        with metrics.time_script("overview"):
            return store.overview()

    api_keys, tenants = ApiKeys(store.client), Tenants(store.client)
    credentials = CredentialCache(api_keys, tenants, AdminKeys(store.client), clock)
    return DoorContext(
        settings=settings,
        store=store,
        files=Files(store.client, files_folder(settings, in_disk_thread)),
        clock=clock,
        trusted_proxies=proxies,
        request_bounds=bounds_of_requests(settings),
        failed_keys=FailedKeys(settings.failed_keys_per_minute, proxies, clock),
        credentials=credentials,
        key_watch=KeyWatch(api_keys, tenants),
        ticket_signer=TicketSigner(store.client),
        return_tickets=ReturnTickets(store.client, clock),
        pools=ModelPools(store, settings, clock),
        event_hub=EventHub(store, metrics.show_followed),
        in_doubt=InDoubtJobs(store, clock),
        metrics=metrics,
        process_page=ProcessPage(metrics, clock),
        readiness=SharedAnswer(read_overview, clock),
        fleet_page=FleetPage(store, metrics, clock),
        usage_days=UsageDays(store.client, clock),
        admin_key="" if settings.auth == "open" else load_admin_key(settings),
        sign_in=make_sign_in(settings, clock),
        traces=make_traces("penstock-door", on=settings.traces == "on"),
    )
