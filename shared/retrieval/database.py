"""The database of collections as a process uses it: one object, safe for threads and greenlets."""

import math
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TypeVar

import psycopg

from shared.log import get_logger
from shared.retrieval import indexes, searching, tenant_collections, tenant_documents
from shared.retrieval.breaker import Breaker
from shared.retrieval.calls import Call, Calls
from shared.retrieval.connecting import CONNECT_S, Connection, is_read_only, open_connection, reason_of
from shared.retrieval.errors import CollectionMissing, DatabaseAway, OutOfTime, RetrievalError
from shared.retrieval.records import (
    MAX_DOCUMENT_ID,
    Collection,
    Document,
    Found,
    NewChunk,
    NewCollection,
    Query,
    check_name,
    parse_metadata,
)
from shared.retrieval.sizes import Sizes, read_sizes
from shared.retrieval.tenant_collections import PIECE_S
from shared.retrieval.vector_stores import FileLoads, StoreFiles, VectorStores

log = get_logger()

#: How long a call may take that has no time of its own, in seconds.
CALL_S = 5.0
#: How long `ready` waits, in seconds.
_READY_S = 2.0
#: How long an erasure waits for another process that makes an index, in seconds, and between two looks.
_INDEX_S, _LOOK_S = 600.0, 0.2
#: After indexes could not be changed, the next try waits this long, in seconds.
_REST_S = 60.0
#: The tenant whose share work on all tenants uses; no tenant has such a name.
_NOBODY = ""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Bounds:
    """The bounds of a tenant and of this process, and the size from which a collection gets an index of its vectors."""

    connections: int = 4
    index_from_chunks: int = 5_000
    max_indexes: int = 64
    #: In which the server makes an index. pgvector takes about 2.4 kB for a vector of 384 numbers.
    index_memory_bytes: int = 2**30
    max_collections: int = 100
    max_tenant_chunks: int = 1_000_000
    max_tenant_documents: int = 1_000_000
    max_tenant_text_bytes: int = 1 << 40


class Database:
    """The collections of all tenants. It connects when it is first used.

    Every method but `ready` and `close` raises DatabaseAway and OutOfTime besides what its text names. `until` is a
    time of time.monotonic(); without it, a call may take CALL_S seconds. Names and ids of a tenant never reach the rows
    of another one, whatever they contain.
    """

    def __init__(self, url: str, bounds: Bounds | None = None, *, connect_s: int = CONNECT_S) -> None:
        self._bounds = bounds or Bounds()
        self._open: Callable[[], Connection] = lambda: open_connection(url, connect_s)
        self._calls = Calls(self._open, self._bounds.connections)
        self._breaker = Breaker()
        #: The collections as vector stores, their files, and the loads of these files.
        self.stores, self.files, self.loads = VectorStores(self._run), StoreFiles(self._run), FileLoads(self._run)
        #: Held while this process changes indexes; set if they have to be looked at (again).
        self._tidying, self._untidy = threading.Lock(), threading.Event()
        self._rest_until_s = float("-inf")

    def close(self, wait_s: float = 2.0) -> None:
        """Close all connections, and wait at most `wait_s` seconds for that."""
        self._calls.close(wait_s)

    # --- collections ---------------------------------------------------------------------------------

    def create_collection(self, tenant: str, new: NewCollection, *, until: float | None = None) -> Collection:
        """Create a collection. Raises CollectionExists, and TooLarge if the tenant has too many."""
        most = self._bounds.max_collections
        return self._run(
            tenant, lambda at, call: tenant_collections.create(at, tenant, new, most, call.until_s), until, writes=True
        )

    def collections(self, tenant: str, *, until: float | None = None) -> list[Collection]:
        """Return the collections of a tenant by name."""
        return self._run(tenant, lambda at, call: tenant_collections.find_all(at, tenant, call.until_s), until)

    def collection(self, tenant: str, name: str, *, until: float | None = None) -> Collection:
        """Return a collection of a tenant. Raises CollectionMissing.

        With `until`, it is looked up for a search, and a time-out counts as one of the search.
        """

        def work(at: Connection, call: Call[Collection]) -> Collection:
            return tenant_collections.find(at, tenant, name, call.until_s)

        return self._run(tenant, work, None) if until is None else self._run_search(tenant, work, until)

    def vector_store(self, tenant: str, store_id: str, *, until: float | None = None) -> Collection:
        """Return the collection of a tenant that is this vector store. Raises as `collection`."""

        def work(at: Connection, call: Call[Collection]) -> Collection:
            return tenant_collections.find_store(at, tenant, store_id, call.until_s)

        return self._run(tenant, work, None) if until is None else self._run_search(tenant, work, until)

    def delete_collection(self, tenant: str, name: str) -> None:
        """Delete a collection with its documents. Raises CollectionMissing.

        Nobody sees the collection from the start on, and an interrupted deletion is continued by `tidy`.
        """
        number = self._give_up(tenant, name)
        self._clear(tenant, number)
        self._tidy_soon()

    # --- documents -----------------------------------------------------------------------------------

    def put_document(
        self,
        tenant: str,
        name: str,
        document_id: str,
        metadata: Mapping[str, object] | None,
        digest: str,
        chunks: Sequence[NewChunk],
        *,
        claim: str | None = None,
        filename: str | None = None,
        until: float = math.inf,
    ) -> Document:
        """Write a document, or replace the one with this id, and raise the collection's version by one.

        With `claim`, only if the document is still claimed so (`loads`), and otherwise ClaimGone is raised. Raises
        CollectionMissing, InvalidInput and TooLarge. A load may take seconds, by its number of chunks, and ends by
        `until`.
        """
        check_name("id", document_id, MAX_DOCUMENT_ID)
        checked, own = parse_metadata(metadata), self._bounds
        most = tenant_documents.TenantBounds(own.max_tenant_chunks, own.max_tenant_documents, own.max_tenant_text_bytes)

        def work(at: Connection, call: Call[Document]) -> Document:
            return tenant_documents.put(
                at, tenant, name, document_id, checked, digest, chunks, most, call.until_s, claim, filename
            )

        end = min(until, time.monotonic() + tenant_documents.seconds_for(len(chunks)))
        document = self._run(tenant, work, end, writes=True)
        if self._bounds.max_indexes:
            size = self.collection(tenant, name).chunks
            # Looks again whenever a collection has grown by a tenth of the size from which it gets an index.
            step = max(1, self._bounds.index_from_chunks // 10)
            if size >= self._bounds.index_from_chunks and size // step != (size - len(chunks)) // step:
                self._tidy_soon()
        return document

    def set_metadata(
        self, tenant: str, name: str, document: Document, metadata: Mapping[str, object] | None
    ) -> Document | None:
        """Replace the metadata of a document, and return it; None if it has been replaced or deleted meanwhile.

        Raises CollectionMissing and InvalidInput.
        """
        checked = parse_metadata(metadata)
        until = time.monotonic() + tenant_documents.seconds_for(document.chunks)

        def work(at: Connection, call: Call[Document | None]) -> Document | None:
            return tenant_documents.set_metadata(at, tenant, name, document.id, checked, document.digest, call.until_s)

        return self._run(tenant, work, until, writes=True)

    def documents(self, tenant: str, name: str, *, after: str | None = None, limit: int = 100) -> list[Document]:
        """Return up to `limit` documents whose ids come after `after`, in the order of their bytes.

        Raises CollectionMissing.
        """
        return self._run(
            tenant, lambda at, call: tenant_documents.page(at, tenant, name, after or "", limit, call.until_s), None
        )

    def document(self, tenant: str, name: str, document_id: str) -> Document | None:
        """Return a document, or None if there is no such. Raises CollectionMissing."""
        return self._run(
            tenant, lambda at, call: tenant_documents.find(at, tenant, name, document_id, call.until_s), None
        )

    def chunks(self, tenant: str, name: str, document_id: str, *, first: int = 0, limit: int = 200) -> list[NewChunk]:
        """Return up to `limit` chunks of a document from the ordinal `first` on. Raises CollectionMissing."""

        def work(at: Connection, call: Call[list[NewChunk]]) -> list[NewChunk]:
            return tenant_documents.chunks(at, tenant, name, document_id, first, limit, call.until_s)

        return self._run(tenant, work, None)

    def delete_document(self, tenant: str, name: str, document_id: str) -> bool:
        """Delete a document, and return whether there was one. Raises CollectionMissing."""
        known = self.document(tenant, name, document_id)
        until = time.monotonic() + tenant_documents.seconds_for(known.chunks if known else 0)

        def work(at: Connection, call: Call[bool]) -> bool:
            return tenant_documents.delete(at, tenant, name, document_id, call.until_s)

        return self._run(tenant, work, until, writes=True)

    # --- search --------------------------------------------------------------------------------------

    def check_searches(self, tenant: str) -> None:
        """Raise SearchesStopped if the searches of a tenant are skipped now, as `search` would."""
        self._breaker.check(tenant, is_trial=False)

    def search(self, tenant: str, name: str, query: Query, until: float) -> Found:
        """Return the best passages, at the latest at `until`; the server cancels what takes longer.

        Raises CollectionMissing, InvalidInput if the query does not fit the collection, OutOfTime, DatabaseAway, and
        SearchesStopped for a while after searches have timed out again and again.
        """
        self._breaker.check(tenant)

        def work(at: Connection, call: Call[Found]) -> Found:
            def note(found: Found) -> None:
                call.partial = found

            return searching.search(at, tenant, name, query, call.until_s, note)

        try:
            found = self._run_search(tenant, work, until)
        except (OutOfTime, DatabaseAway, psycopg.Error):
            raise
        except RetrievalError:
            self._breaker.succeeded(tenant)
            raise
        self._breaker.succeeded(tenant)
        return found

    # --- for operators -------------------------------------------------------------------------------

    def ready(self) -> str | None:
        """Return why collections cannot be searched now, or None if they can."""
        try:
            self._run(
                _NOBODY, lambda at, call: tenant_collections.abandoned(at, call.until_s), time.monotonic() + _READY_S
            )
        except (DatabaseAway, OutOfTime) as error:
            return error.reason if isinstance(error, DatabaseAway) else str(error)
        return "searches of several tenants time out, and are skipped for a while" if self._breaker.is_open else None

    def notes(self) -> list[str]:
        """Return what an operator should know about the database although it is not away."""
        from_chunks, most = self._bounds.index_from_chunks, self._bounds.max_indexes
        if self._run(_NOBODY, lambda at, _: is_read_only(at), None):
            return ["the database is read-only: documents are found, and none can be loaded or deleted"]
        found = self._run(_NOBODY, lambda at, _: indexes.count(at, from_chunks), None)
        if found.waiting and found.made < most:
            self._tidy_soon()
            return [f"{found.waiting} collections of {from_chunks} chunks or more wait for their index of vectors"]
        if found.waiting:
            note = (
                f"{found.waiting} collections of {from_chunks} chunks or more are searched exactly, because the "
                f"database has {found.made} indexes of vectors and may have {most} (PENSTOCK_MAX_VECTOR_INDEXES)"
            )
            return [note]
        return []

    def sizes(self) -> Sizes:
        """Return how much the database keeps, by collection and in all."""
        return self._run(_NOBODY, lambda at, call: read_sizes(at, call.until_s), time.monotonic() + PIECE_S)

    def tidy(self) -> indexes.Indexes | None:
        """Continue interrupted deletions, then make and drop indexes as their number and the sizes ask for.

        Returns None if another process does that now. May take minutes.
        """
        for tenant, number in self._run(_NOBODY, lambda at, call: tenant_collections.abandoned(at, call.until_s), None):
            self._clear(tenant, number)
        bounds = self._bounds
        with self._own_connection() as connection:
            return indexes.tidy(connection, bounds.index_from_chunks, bounds.max_indexes, bounds.index_memory_bytes)

    def erase_tenant(self, tenant: str) -> int:
        """Delete all collections of a tenant with their rows and indexes, and return how many there were.

        Raises DatabaseAway also if some rows or indexes are left, because somebody else loads documents meanwhile or
        makes an index; the erasure can be repeated.
        """
        numbers = self._run(tenant, lambda at, call: tenant_collections.given_up(at, tenant, call.until_s), None)
        for collection in self.collections(tenant):
            with suppress(CollectionMissing):
                numbers.append(self._give_up(tenant, collection.name))
        for number in numbers:
            self._clear(tenant, number)
        with self._own_connection() as connection:
            self._drop_indexes(connection, numbers)
            left = tenant_collections.rows_left(connection, tenant, time.monotonic() + PIECE_S)
            if left:
                raise DatabaseAway(f"{left} rows of the tenant were written during the erasure; repeat it")
            # Until then, the deleted rows are still in the files; then in free space, until that is used again.
            for table in ("chunks", "documents", "collections"):
                connection.execute(f"VACUUM penstock.{table}".encode())
        return len(numbers)

    # --- parts ---------------------------------------------------------------------------------------

    def _run(
        self, tenant: str, work: Callable[[Connection, Call[T]], T], until: float | None, *, writes: bool = False
    ) -> T:
        return self._calls.run(tenant, work, time.monotonic() + CALL_S if until is None else until, writes=writes)

    def _run_search(self, tenant: str, work: Callable[[Connection, Call[T]], T], until: float) -> T:
        """Run a part of a search. Enough time-outs stop the searches of the tenant, or of all, for a while."""
        given_s = until - time.monotonic()
        try:
            return self._calls.run(tenant, work, until)
        except OutOfTime as error:
            if error.started:
                self._breaker.timed_out(tenant, given_s)
            raise

    def _give_up(self, tenant: str, name: str) -> int:
        def work(at: Connection, call: Call[int]) -> int:
            return tenant_collections.give_up(at, tenant, name, call.until_s)

        return self._run(tenant, work, None, writes=True)

    def _clear(self, tenant: str, number: int) -> None:
        """Delete the rows of a collection that was given up, in pieces between which other calls have a turn."""

        def work(at: Connection, call: Call[bool]) -> bool:
            return tenant_collections.clear_piece(at, tenant, number, call.until_s)

        while not self._run(tenant, work, time.monotonic() + PIECE_S, writes=True):
            pass

    @contextmanager
    def _own_connection(self) -> Iterator[Connection]:
        """Open a connection for work that may take minutes; it is not one of those that calls share.

        Raises DatabaseAway for errors of the work too.
        """
        try:
            with self._open() as connection:
                yield connection
        except psycopg.Error as error:
            raise DatabaseAway(reason_of(error)) from None

    def _drop_indexes(self, connection: Connection, numbers: list[int]) -> None:
        until_s = time.monotonic() + _INDEX_S
        while not indexes.drop_of(connection, numbers):
            if time.monotonic() > until_s:
                raise DatabaseAway("another process makes an index; repeat the erasure when it has ended")
            time.sleep(_LOOK_S)

    def _tidy_soon(self) -> None:
        """Run `tidy` on a thread of its own, once more if one runs already, and not soon after one has failed."""
        self._untidy.set()
        if time.monotonic() >= self._rest_until_s and self._tidying.acquire(blocking=False):
            threading.Thread(target=self._tidy_until_done, name="retrieval-indexes", daemon=True).start()

    def _tidy_until_done(self) -> None:
        try:
            until_s = time.monotonic() + _INDEX_S
            while self._untidy.is_set() and time.monotonic() < until_s:
                self._untidy.clear()
                if self.tidy() is None:
                    self._untidy.set()
                    time.sleep(_LOOK_S)
        except RetrievalError as error:
            self._rest_until_s = time.monotonic() + _REST_S
            log.warning("retrieval.tidy_failed", reason=reason_of(error))
        finally:
            self._tidying.release()
        if self._untidy.is_set() and time.monotonic() >= self._rest_until_s:
            self._tidy_soon()
