"""The objects of one process that belong to no cell: metrics, bounds, credentials, sign-in and the database."""

import threading
from typing import Generic, TypeVar

from shared.clock import Clock
from shared.retrieval.configured import open_database
from shared.settings.settings import Settings
from shared.tracing.traces import make_traces
from web.http.client_address import parse_trusted_proxies
from web.http.process_metrics import ProcessMetrics
from web.runtime.cells import DoorCells
from web.runtime.credentials.credential_cache import CredentialCache
from web.runtime.credentials.failed_keys import FailedKeys
from web.runtime.credentials.key_watch import KeyWatch
from web.runtime.fleet_of_cells import FleetOfCells, MeasuredCell
from web.runtime.process_page import ProcessPage
from web.runtime.shared_answer import SharedAnswer
from web.runtime.start import bounds_of_requests, load_admin_key
from web.sign_in.sign_in import make_sign_in

C = TypeVar("C", bound=MeasuredCell)


class DoorProcess(Generic[C]):
    """The objects that the contexts of all cells share in one process."""

    def __init__(self, settings: Settings, clock: Clock, first: C) -> None:
        """Create the objects of a process, whose first context is that of the store that the settings name.

        Raises ConfigError if the admin key file cannot be used, or if PENSTOCK_TRUSTED_PROXIES or
        PENSTOCK_SIGN_IN_PROXIES contains an invalid entry, or as `make_traces` and `open_database` do.
        """
        self.settings = settings
        self.metrics = metrics = ProcessMetrics(clock)
        self.trusted_proxies = parse_trusted_proxies(settings.trusted_proxies)
        #: Counts the clients' open requests in this process; it changes only in the event loop.
        self.request_bounds = bounds_of_requests(settings)
        self.failed_keys = FailedKeys(settings.failed_keys_per_minute, self.trusted_proxies, clock)
        self.cells: DoorCells[C] = DoorCells(first)
        self.credentials = CredentialCache(self.cells.ask, clock)
        self.key_watch = KeyWatch(self.cells.ask)
        self.process_page = ProcessPage(metrics, clock)
        self.fleet = FleetOfCells(self.cells, clock)
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

    def _ask_database(self) -> str | None:
        return None if self.database is None else self.database.ready()
