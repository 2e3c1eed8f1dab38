"""The database's collections as vector stores, their files, and the loads of these files.

Every method raises DatabaseAway and OutOfTime besides what its text names.
"""

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Protocol, TypeVar

from shared.retrieval import file_loads, store_files, tenant_collections
from shared.retrieval.calls import Call
from shared.retrieval.connecting import Connection
from shared.retrieval.file_records import (
    ErrorCode,
    FileBatch,
    FileCounts,
    FileLoad,
    LoadsOverview,
    NewFile,
    StoreFile,
)
from shared.retrieval.pages import Page
from shared.retrieval.records import Collection as DocumentCollection
from shared.retrieval.records import Metadata
from shared.retrieval.tenant_documents import seconds_for

#: The tenant whose share of the connections the work on all tenants uses; no tenant has such a name.
_NOBODY = ""

T = TypeVar("T")


class Run(Protocol):
    """Runs work on one of the database's connections for a tenant."""

    def __call__(
        self, tenant: str, work: Callable[[Connection, Call[T]], T], until: float | None, *, writes: bool = False
    ) -> T: ...


class VectorStores:
    """The collections of tenants as vector stores (Database.vector_store finds one)."""

    def __init__(self, run: Run) -> None:
        self._run = run

    def page(self, tenant: str, wanted: Page) -> tuple[list[DocumentCollection], bool]:
        """Return a page of the collections by id, which is their order of creation, and whether there are more."""
        return self._run(tenant, lambda at, call: tenant_collections.page(at, tenant, wanted, call.until_s), None)

    def counts(self, tenant: str, ids: Sequence[str]) -> dict[str, FileCounts]:
        """Return how many files are in each state, by Collection.id, for each of these collections that has any."""

        def work(at: Connection, call: Call[dict[str, FileCounts]]) -> dict[str, FileCounts]:
            return tenant_collections.file_counts(at, tenant, ids, call.until_s)

        return self._run(tenant, work, None)

    def change(self, tenant: str, store_id: str, fields: Mapping[str, Any]) -> DocumentCollection:
        """Change the title, the description or the labels of a collection. Raises CollectionMissing."""
        return self._run(
            tenant, lambda at, call: tenant_collections.change(at, tenant, store_id, fields, call.until_s), None
        )


class StoreFiles:
    """The documents of collections as files of vector stores. Every method raises CollectionMissing."""

    def __init__(self, run: Run) -> None:
        self._run = run

    def add(
        self,
        tenant: str,
        name: str,
        files: Sequence[NewFile],
        *,
        batch: str | None,
        key: tuple[str, str],
        most: int,
    ) -> list[StoreFile]:
        """Add files with different ids, to be loaded for the owner of a key (its label and digest).

        Raises TooLarge if the tenant would have more than `most` documents, or too many that wait.
        """

        def work(at: Connection, call: Call[list[StoreFile]]) -> list[StoreFile]:
            return store_files.add(at, tenant, name, files, batch, key, most, call.until_s)

        return self._run(tenant, work, None)

    def find(self, tenant: str, name: str, file_id: str) -> StoreFile | None:
        """Return a file, or None if there is no such."""
        return self._run(tenant, lambda at, call: store_files.find(at, tenant, name, file_id, call.until_s), None)

    def page(
        self, tenant: str, name: str, wanted: Page, *, state: str | None = None, batch: str | None = None
    ) -> tuple[list[StoreFile], bool]:
        """Return a page of the files by id, with this state and of this batch only, and whether there are more."""

        def work(at: Connection, call: Call[tuple[list[StoreFile], bool]]) -> tuple[list[StoreFile], bool]:
            return store_files.page(at, tenant, name, wanted, state, batch, call.until_s)

        return self._run(tenant, work, None)

    def change(self, tenant: str, name: str, file_id: str, metadata: Metadata, chunks: int) -> StoreFile | None:
        """Replace the metadata of a file, which has about this number of chunks; None if there is no such file."""

        def work(at: Connection, call: Call[StoreFile | None]) -> StoreFile | None:
            return store_files.change(at, tenant, name, file_id, metadata, call.until_s)

        return self._run(tenant, work, time.monotonic() + seconds_for(chunks), writes=True)

    def batch(self, tenant: str, name: str, batch: str) -> FileBatch | None:
        """Return a batch, or None if the store has no file of it."""
        return self._run(tenant, lambda at, call: store_files.find_batch(at, tenant, name, batch, call.until_s), None)

    def cancel_batch(self, tenant: str, name: str, batch: str) -> FileBatch | None:
        """Cancel the files of a batch that are not loaded yet; None if the store has no file of it."""
        return self._run(tenant, lambda at, call: store_files.cancel_batch(at, tenant, name, batch, call.until_s), None)


class FileLoads:
    """The loads of files, of all tenants."""

    def __init__(self, run: Run) -> None:
        self._run = run

    def claim(
        self,
        token: str,
        lease_s: float,
        *,
        without: Collection[str] = (),
        resting: Collection[tuple[str, str]] = (),
    ) -> FileLoad | None:
        """Claim a file for `lease_s` seconds; None if that is impossible now.

        It is of no tenant in `without`, and of no tenant and embedding model in `resting`.
        """

        def work(at: Connection, call: Call[FileLoad | None]) -> FileLoad | None:
            return file_loads.claim(at, token, lease_s, without, resting, call.until_s)

        return self._run(_NOBODY, work, None)

    def renew(self, tokens: Sequence[str], lease_s: float) -> frozenset[str]:
        """Prolong claims, and return those that have not ended."""
        return self._run(_NOBODY, lambda at, call: file_loads.renew(at, tokens, lease_s, call.until_s), None)

    def release(self, load: FileLoad, rest_s: float, why: str) -> None:
        """Give a file back, which is claimed again after `rest_s` seconds at the earliest."""
        self._run(_NOBODY, lambda at, call: file_loads.release(at, load, rest_s, why, call.until_s), None)

    def finish(self, load: FileLoad, chunks: int) -> None:
        """Note that the chunks of a file, of about this number, are already those of its content.

        They get the file's metadata. Raises ClaimGone and CollectionMissing.
        """
        until = time.monotonic() + seconds_for(chunks)
        self._run(load.tenant, lambda at, call: file_loads.finish(at, load, call.until_s), until, writes=True)

    def fail(self, load: FileLoad, code: ErrorCode, message: str) -> None:
        """Note why a file cannot be loaded, unless its claim has ended."""
        self._run(_NOBODY, lambda at, call: file_loads.fail(at, load, code, message, call.until_s), None)

    def overview(self) -> LoadsOverview:
        """Return what operators see of the loads of all tenants."""
        return self._run(_NOBODY, lambda at, call: file_loads.read_overview(at, call.until_s), None)
