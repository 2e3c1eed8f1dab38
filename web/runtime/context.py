"""The objects that all routes of one app, or all connections of one gate, share: settings, store client, caches."""

import threading
from functools import partial

from shared.accounts.admin_keys import AdminKeys
from shared.accounts.api_keys import ApiKeys
from shared.accounts.tenants import Tenants
from shared.clock import Clock
from shared.jobs.job import JobView
from shared.retrieval.configured import open_database
from shared.settings.settings import Settings
from shared.store.answer_cache import AnswerCache
from shared.store.batches.files import Files
from shared.store.batches.storage_location import files_folder
from shared.store.passage_cache import PassageCache
from shared.store.preflight import find_write_fault
from shared.store.replies import Overview
from shared.store.store import Store
from shared.tracing.traces import make_traces
from web.http.client_address import parse_trusted_proxies
from web.http.process_metrics import ProcessMetrics
from web.runtime.answer_vectors import SCOPE_BYTES, AnswerVectors
from web.runtime.credentials.credential_cache import CredentialCache
from web.runtime.credentials.failed_keys import FailedKeys
from web.runtime.credentials.key_watch import KeyWatch
from web.runtime.disk_threads import in_disk_thread
from web.runtime.event_hub import EventHub
from web.runtime.fleet_metrics import FleetPage
from web.runtime.in_doubt import InDoubtJobs
from web.runtime.model_pools import ModelPools
from web.runtime.process_page import ProcessPage
from web.runtime.repeated_refusals import RepeatedRefusals
from web.runtime.shared_answer import SharedAnswer, UsageDays
from web.runtime.start import bounds_of_requests, load_admin_key
from web.runtime.ticket_signer import ReturnTickets, TicketSigner
from web.sign_in.sign_in import make_sign_in


class DoorContext:
    """The objects that the routes or connections of one process share. None of them holds the state of a job."""

    def __init__(self, settings: Settings, store: Store, clock: Clock) -> None:
        """Create the context of one process.

        Raises ConfigError if the admin key file cannot be used, or if PENSTOCK_TRUSTED_PROXIES or
        PENSTOCK_SIGN_IN_PROXIES contains an invalid entry, or as `make_traces` and `open_database` do.
        """
        self.settings, self.store, self.clock = settings, store, clock
        self.files = Files(store.client, files_folder(settings, in_disk_thread))
        self.metrics = metrics = ProcessMetrics(clock)
        self.trusted_proxies = parse_trusted_proxies(settings.trusted_proxies)
        #: Counts the clients' open requests in this process; it changes only in the event loop.
        self.request_bounds = bounds_of_requests(settings)
        self.failed_keys = FailedKeys(settings.failed_keys_per_minute, self.trusted_proxies, clock)
        api_keys, tenants = ApiKeys(store.client), Tenants(store.client)
        self.credentials = CredentialCache(api_keys, tenants, AdminKeys(store.client), clock)
        self.key_watch = KeyWatch(api_keys, tenants)
        self.ticket_signer = TicketSigner(store.client)
        self.return_tickets = ReturnTickets(store.client, clock)
        self.pools = ModelPools(store, settings, clock)
        self.event_hub = EventHub(store, metrics.show_followed)
        #: The jobs to cancel as soon as the store answers again, such as those whose offer got no answer.
        self.in_doubt = InDoubtJobs(store, clock)
        #: The passages that were found for queries.
        self.passage_cache = PassageCache(store.client, ttl_s=settings.cache_ttl_s, max_bytes=settings.cache_bytes)
        #: The answers of the semantic cache, and what this process knows of the vectors of their prompts.
        self.answer_cache = AnswerCache(
            store.client,
            ttl_s=settings.semantic_cache_ttl_s,
            max_entries=settings.semantic_cache_entries,
            max_bytes=settings.semantic_cache_bytes,
            scope_bytes=SCOPE_BYTES,
        )
        self.answer_vectors = AnswerVectors(settings.semantic_cache_entries)
        self.repeated_refusals = RepeatedRefusals(store, clock)
        self.process_page = ProcessPage(metrics, clock)
        #: The answers of /health/ready and /metrics/fleet, which anybody may request as often as they like.
        self.readiness = SharedAnswer(self.overview, clock)
        #: Why the store refuses writes although it answers, or None.
        self.write_fault = SharedAnswer(partial(find_write_fault, store.client), clock)
        self.fleet_page = FleetPage(store, metrics, clock)
        self.usage_days = UsageDays(store.client, clock)
        #: The key in the admin key file, which operators' routes accept; "" if PENSTOCK_AUTH is `open`.
        self.admin_key = "" if settings.auth == "open" else load_admin_key(settings)
        #: The trusted sources of users' names, and the roles of users.
        self.sign_in = make_sign_in(settings, clock)
        #: The database of collections, or None if PENSTOCK_DATABASE_URL is not set. It connects when it is used.
        self.database = open_database(settings)
        #: Why collections cannot be searched now, or None if they can.
        self.database_away = SharedAnswer(self._ask_database, clock)
        #: Set when a file of a vector store waits for its load.
        self.files_wait = threading.Event()
        self.traces = make_traces("penstock-door", on=settings.traces == "on")

    def overview(self) -> Overview:
        """Return how many jobs are inflight, the bounds and the number of live workers. Raises StoreUnavailable."""
        with self.metrics.time_script("overview"):
            return self.store.overview()

    def _ask_database(self) -> str | None:
        return None if self.database is None else self.database.ready()

    def cancel(self, view: JobView) -> None:
        """Cancel a job on behalf of its tenant. Raises StoreUnavailable."""
        with self.metrics.time_script("cancel"):
            self.store.cancel(view.id, tenant=view.tenant)
