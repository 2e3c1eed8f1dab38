"""Statements for the files of vector stores: added to be loaded, listed, changed and canceled; one transaction each."""

import json
from collections.abc import Sequence
from typing import Any

from psycopg.types.json import Jsonb

from shared.retrieval.connecting import Connection
from shared.retrieval.errors import TooLarge
from shared.retrieval.file_records import FileBatch, FileCounts, NewFile, StoreFile
from shared.retrieval.pages import Page, cut_page, page_clauses
from shared.retrieval.records import Metadata, storable
from shared.retrieval.schema import FILES_LOCK_CLASS
from shared.retrieval.tenant_collections import unix_ms
from shared.retrieval.tenant_documents import as_metadata, collection_number, count_change, lock_collection
from shared.retrieval.transactions import limit, tenant_transaction

#: The most files of a tenant that wait for their load.
MAX_WAITING = 2_000

_COLUMNS = "id, filename, metadata, state, error_code, error, text_bytes, added_at, chunk_tokens, overlap_tokens"
# A document with the same id stays as it is until its load, and a load of it that runs now ends.
_ADD = (
    """
INSERT INTO penstock.documents (tenant, collection, id, filename, metadata, digest, text_bytes, chunks, loaded, state,
  batch, chunk_tokens, overlap_tokens, key_label, key_digest)
SELECT %s, %s, id, filename, metadata::jsonb, '', 0, 0, false, 'in_progress', %s, chunk_tokens, overlap_tokens, %s, %s
FROM unnest(%s::text[], %s::text[], %s::text[], %s::int[], %s::int[])
  AS added (id, filename, metadata, chunk_tokens, overlap_tokens)
-- Two requests with the same files lock them in the same order.
ORDER BY id
ON CONFLICT (collection, id) DO UPDATE SET filename = excluded.filename, metadata = excluded.metadata,
  state = 'in_progress', added_at = excluded.added_at, batch = excluded.batch, chunk_tokens = excluded.chunk_tokens,
  overlap_tokens = excluded.overlap_tokens, key_label = excluded.key_label, key_digest = excluded.key_digest,
  error_code = NULL, error = NULL, attempts = 0, claim = NULL, claimed_until = NULL
RETURNING """
    + _COLUMNS
)
_CHANGE = (
    """
UPDATE penstock.documents SET metadata = %s, claim = NULL, claimed_until = NULL, attempts = 0
WHERE collection = %s AND id = %s RETURNING number, """
    + _COLUMNS
)


def add(
    connection: Connection,
    tenant: str,
    name: str,
    files: Sequence[NewFile],
    batch: str | None,
    key: tuple[str, str],
    most: int,
    until_s: float,
) -> list[StoreFile]:
    """Add files with different ids, to be loaded for the owner of a key (its label and digest).

    Raises CollectionMissing, and TooLarge if the tenant would have more than `most` documents or too many that wait.
    """
    with tenant_transaction(connection, tenant, until_s):
        number = collection_number(connection, tenant, name)
        _check_counts(connection, tenant, number, [file.id for file in files], most)
        rows = connection.execute(
            _ADD.encode(),
            (
                *(tenant, number, batch, *key),
                [file.id for file in files],
                [storable(file.filename) for file in files],
                [json.dumps(dict(file.metadata)) for file in files],
                [file.chunk_tokens for file in files],
                [file.overlap_tokens for file in files],
            ),
        )
        return [_file(row) for row in rows]


def find(connection: Connection, tenant: str, name: str, file_id: str, until_s: float) -> StoreFile | None:
    """Return a file, or None if there is no such. Raises CollectionMissing."""
    query = f"SELECT {_COLUMNS} FROM penstock.documents WHERE collection = %s AND id = %s"  # noqa: S608 - constants
    with tenant_transaction(connection, tenant, until_s):
        number = collection_number(connection, tenant, name)
        row = connection.execute(query.encode(), (number, file_id)).fetchone()
    return None if row is None else _file(row)


def page(
    connection: Connection,
    tenant: str,
    name: str,
    wanted: Page,
    state: str | None,
    batch: str | None,
    until_s: float,
) -> tuple[list[StoreFile], bool]:
    """Return a page of the files by id, and whether there are more behind it. Raises CollectionMissing.

    With `state` or `batch`, only such files.
    """
    condition, end, values = page_clauses(wanted)
    query = (
        f"SELECT {_COLUMNS} FROM penstock.documents WHERE collection = %s "  # noqa: S608 - constants
        f"AND (%s::text IS NULL OR state = %s) AND (%s::text IS NULL OR batch = %s) AND {condition} {end}"
    )
    with tenant_transaction(connection, tenant, until_s):
        number = collection_number(connection, tenant, name)
        rows = connection.execute(query.encode(), (number, state, state, batch, batch, *values))
        return cut_page([_file(row) for row in rows], wanted)


def change(
    connection: Connection, tenant: str, name: str, file_id: str, metadata: Metadata, until_s: float
) -> StoreFile | None:
    """Replace the metadata of a file and of its chunks, and return it, or None if there is no such.

    A load of it that runs now begins again. Raises CollectionMissing.
    """
    with tenant_transaction(connection, tenant, until_s):
        number, _, _ = lock_collection(connection, tenant, name)
        row = connection.execute(_CHANGE.encode(), (Jsonb(dict(metadata)), number, file_id)).fetchone()
        if row is None:
            return None
        limit(connection, until_s)
        connection.execute(
            "UPDATE penstock.chunks SET metadata = %s WHERE collection = %s AND document = %s",
            (Jsonb(dict(metadata)), number, row[0]),
        )
        count_change(connection, number, 0, 0, 0)
    return _file(row[1:])


def find_batch(connection: Connection, tenant: str, name: str, batch: str, until_s: float) -> FileBatch | None:
    """Return a batch, or None if the store has no file of it. Raises CollectionMissing."""
    with tenant_transaction(connection, tenant, until_s):
        return _batch(connection, collection_number(connection, tenant, name), batch)


def cancel_batch(connection: Connection, tenant: str, name: str, batch: str, until_s: float) -> FileBatch | None:
    """Cancel the files of a batch that are not loaded yet. Returns as `find_batch` does."""
    with tenant_transaction(connection, tenant, until_s):
        number = collection_number(connection, tenant, name)
        connection.execute(
            "UPDATE penstock.documents SET state = 'cancelled', claim = NULL, claimed_until = NULL "
            "WHERE collection = %s AND batch = %s AND state = 'in_progress'",
            (number, batch),
        )
        return _batch(connection, number, batch)


def _batch(connection: Connection, number: int, batch: str) -> FileBatch | None:
    rows = connection.execute(
        "SELECT state, count(*), min(added_at) FROM penstock.documents WHERE collection = %s AND batch = %s "
        "GROUP BY state",
        (number, batch),
    ).fetchall()
    if not rows:
        return None
    created_ms = min(unix_ms(row[2]) for row in rows)
    return FileBatch(batch, created_ms, FileCounts.of([(str(row[0]), int(row[1])) for row in rows]))


def _check_counts(connection: Connection, tenant: str, number: int, ids: list[str], most: int) -> None:
    """Raise TooLarge if the tenant would have too many documents, or too many that wait.

    Others add no file of the tenant until the end of the transaction. Documents can still be written, which may take
    long.
    """
    connection.execute("SELECT pg_advisory_xact_lock(hashtextextended(%s, %s))", (tenant, FILES_LOCK_CLASS))
    row = connection.execute(
        "SELECT (SELECT count(*) FROM penstock.documents WHERE tenant = %s), "
        "(SELECT count(*) FROM penstock.documents WHERE tenant = %s AND state = 'in_progress'), "
        "(SELECT count(*) FROM penstock.documents WHERE collection = %s AND id = ANY (%s))",
        (tenant, tenant, number, ids),
    ).fetchone()
    kept, waiting, known = map(int, row or (0, 0, 0))
    total = kept + len(ids) - known
    if known < len(ids) and total > most:
        raise TooLarge(f"the tenant would have {total} documents, and may have {most} (PENSTOCK_MAX_TENANT_DOCUMENTS)")
    if waiting + len(ids) > MAX_WAITING:
        raise TooLarge(f"{waiting} files of the tenant wait for their load, and {MAX_WAITING} may wait")


def _file(row: Sequence[Any]) -> StoreFile:
    id_, filename, metadata, state, error_code, error, text_bytes, added_at, chunk_tokens, overlap_tokens = row
    return StoreFile(
        str(id_),
        filename,
        as_metadata(metadata),
        state,
        error_code,
        error,
        int(text_bytes),
        unix_ms(added_at),
        chunk_tokens,
        overlap_tokens,
    )
