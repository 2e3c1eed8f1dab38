"""The objects that all routes of one app, or all connections of one gate, share for one cell: store client, caches."""

import threading
from functools import partial
from typing import TYPE_CHECKING

from shared.cells.ids import DEFAULT_CELL, cell_of_id, id_in_cell
from shared.cells.opening import with_folder_of
from shared.cells.stored_ids import cell_of_stored_id, prefix_in_cell
from shared.clock import Clock
from shared.jobs.job import JobView
from shared.settings.settings import Settings
from shared.store.answer_cache import AnswerCache
from shared.store.batches.files import ID_PREFIX as FILE_PREFIX
from shared.store.batches.files import Files
from shared.store.batches.storage_location import files_folder
from shared.store.passage_cache import PassageCache
from shared.store.preflight import find_write_fault
from shared.store.replies import Overview
from shared.store.store import Store
from web.runtime.accounts import Accounts
from web.runtime.answer_vectors import SCOPE_BYTES, AnswerVectors
from web.runtime.disk_threads import in_disk_thread
from web.runtime.event_hub import EventHub
from web.runtime.fleet_metrics import FleetPage
from web.runtime.in_doubt import InDoubtJobs
from web.runtime.model_pools import ModelPools
from web.runtime.process import DoorProcess
from web.runtime.repeated_refusals import RepeatedRefusals
from web.runtime.shared_answer import SharedAnswer, UsageDays
from web.runtime.ticket_signer import ReturnTickets, TicketSigner

if TYPE_CHECKING:
    from shared.retrieval.database import Database


class DoorContext:
    """The objects of one process for one cell, and those of the process. None of them holds the state of a job."""

    def __init__(
        self,
        settings: Settings,
        store: Store,
        clock: Clock,
        *,
        cell: str = DEFAULT_CELL,
        process: "DoorProcess[DoorContext] | None" = None,
    ) -> None:
        """Create the context of one cell.

        Without a `process`, this is the first context of a process, for the store that the settings name, and raises
        what DoorProcess raises.
        """
        self.settings, self.store, self.clock = settings, store, clock
        #: The cell's name. That of the first context is DEFAULT_CELL until the directory has been read.
        self.cell = cell
        #: Set when the cell has left the directory. The threads that serve the cell then end.
        self.closed = threading.Event()
        #: The accounts as this cell has them.
        self.accounts = Accounts.of_store(store.client)
        if process is None:
            process = DoorProcess(settings, clock, self)
        self.process = process
        self.cells = process.cells
        self.metrics = metrics = process.metrics
        self.trusted_proxies, self.request_bounds = process.trusted_proxies, process.request_bounds
        self.failed_keys, self.credentials, self.key_watch = process.failed_keys, process.credentials, process.key_watch
        self.process_page, self.admin_key, self.sign_in = process.process_page, process.admin_key, process.sign_in
        self.database_away, self.files_wait = process.database_away, process.files_wait
        self.traces = process.traces
        self.files = Files(store.client, files_folder(settings, in_disk_thread))
        self.ticket_signer = TicketSigner(store.client)
        self.return_tickets = ReturnTickets(store.client, clock)
        self.pools = ModelPools(store, settings, clock)
        self.event_hub = EventHub(store, partial(metrics.show_followed, self))
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
        #: The answers of /health/ready and /metrics/fleet, which anybody may request as often as they like.
        self.readiness = SharedAnswer(self.overview, clock)
        #: Why the store refuses writes although it answers, or None.
        self.write_fault = SharedAnswer(partial(find_write_fault, store.client), clock)
        self.fleet_page = FleetPage(store, metrics, clock)
        self.usage_days = UsageDays(store.client, clock)

    @property
    def database(self) -> "Database | None":
        """The database of collections; None without PENSTOCK_DATABASE_URL."""
        return self.process.database

    def close(self) -> None:
        """End the threads that serve this cell, because it has left the directory."""
        self.closed.set()
        self.event_hub.close()
        self.in_doubt.close()
        self.repeated_refusals.close()
        self.store.client.connection_pool.disconnect(inuse_connections=False)

    def job_id(self, raw_id: str) -> str:
        """Return the id of a job in this cell. An id that names this cell already stays."""
        return raw_id if cell_of_id(raw_id) == self.cell else id_in_cell(self.cell, raw_id)

    def of_job(self, job_id: str) -> "DoorContext":
        """Return the context of the cell that the id of a job names, or this one if no such cell is known."""
        return self._of_cell(cell_of_id(job_id))

    def of_stored(self, stored_id: str) -> "DoorContext":
        """Return the context of the cell that the id of a file or a batch names, or this one if none is known.

        Raises StoreUnavailable before the directory was read.
        """
        self.cells.require_read()
        return self._of_cell(cell_of_stored_id(stored_id))

    def _of_cell(self, cell: str) -> "DoorContext":
        return self if self.cells.directory is None else self.cells.named(cell) or self

    def take_name(self, cell: str) -> None:
        """Be the context of the cell with this name, which decides where files are kept and the ids that are made."""
        self.cell, self.settings = cell, with_folder_of(self.process.settings, cell)
        self.files.folder = files_folder(self.settings, in_disk_thread)

    @property
    def drains(self) -> bool:
        """Whether the directory says that the cell takes no new jobs."""
        directory = self.cells.directory
        record = None if directory is None else directory.cells.get(self.cell)
        return record is not None and record.state == "draining"

    def new_file_id(self) -> str:
        """Return an id for a file of this cell. Raises StoreUnavailable."""
        return self.files.new_id(self.file_prefix)

    @property
    def file_prefix(self) -> str:
        """The beginning of the ids of this cell's files."""
        return prefix_in_cell(FILE_PREFIX, self.cell)

    def overview(self) -> Overview:
        """Return how many jobs are inflight, the bounds and the number of live workers. Raises StoreUnavailable."""
        with self.metrics.time_script("overview"):
            return self.store.overview()

    def cancel(self, view: JobView) -> None:
        """Cancel a job on behalf of its tenant. Raises StoreUnavailable."""
        with self.metrics.time_script("cancel"):
            self.of_job(view.id).store.cancel(view.id, tenant=view.tenant)
