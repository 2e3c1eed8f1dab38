"""Writes, lists and deletes the documents of a collection: one transaction a document, its chunks in pieces."""

import json
from collections.abc import Sequence
from dataclasses import dataclass

from psycopg.types.json import Jsonb

from shared.retrieval.connecting import Connection
from shared.retrieval.errors import ClaimGone, CollectionMissing, TooLarge
from shared.retrieval.records import Document, Metadata, NewChunk, check_chunks, storable, with_short_runs
from shared.retrieval.tenant_collections import lock_tenant, unix_ms
from shared.retrieval.transactions import limit, tenant_transaction

#: The chunks that one statement inserts.
_PIECE = 100
#: How long the load of a document may take: a part for each document, and one for each chunk, whose vector and words
#: also go into indexes. In seconds.
_DOCUMENT_S, _CHUNK_S = 15.0, 0.05
#: The most documents of one page of a list.
MAX_PAGE = 1_000

_COLUMNS = "id, metadata, digest, text_bytes, chunks, loaded_at, filename"
# A load by somebody else, which has claimed the document, ends.
_PUT = (
    """
INSERT INTO penstock.documents (tenant, collection, id, metadata, digest, text_bytes, chunks, filename)
VALUES (%s, %s, %s, %s, %s, %s, %s, %s)
ON CONFLICT (collection, id) DO UPDATE SET metadata = excluded.metadata, digest = excluded.digest,
  text_bytes = excluded.text_bytes, chunks = excluded.chunks, loaded_at = clock_timestamp(), loaded = true,
  state = 'completed', error_code = NULL, error = NULL, claim = NULL, claimed_until = NULL,
  filename = coalesce(excluded.filename, documents.filename)
RETURNING number, """
    + _COLUMNS
)


_SET_METADATA = (
    """
UPDATE penstock.documents SET metadata = %s, loaded_at = clock_timestamp()
WHERE collection = %s AND id = %s AND digest = %s AND loaded
RETURNING number, """
    + _COLUMNS
)


@dataclass(frozen=True, slots=True)
class TenantBounds:
    """The most chunks and documents that the collections of one tenant may have, and the most bytes of text."""

    chunks: int
    documents: int
    text_bytes: int


def seconds_for(chunks: int) -> float:
    """Return how long a document with this number of chunks may take to be loaded or deleted, in seconds."""
    return _DOCUMENT_S + _CHUNK_S * chunks


def put(
    connection: Connection,
    tenant: str,
    name: str,
    document_id: str,
    metadata: Metadata,
    digest: str,
    chunks: Sequence[NewChunk],
    bounds: TenantBounds,
    until_s: float,
    claim: str | None = None,
    filename: str | None = None,
) -> Document:
    """Write a document, or replace the one with this id, and return it.

    With `claim`, only if the document is still claimed so; otherwise ClaimGone is raised. Raises CollectionMissing,
    TooLarge if the tenant would have more than its bounds allow, and InvalidInput if a vector does not fit the
    collection.
    """
    text_bytes = sum(len(storable(chunk.text).encode()) for chunk in chunks)
    with tenant_transaction(connection, tenant, until_s):
        lock_tenant(connection, tenant)
        number, language, dimensions = lock_collection(connection, tenant, name)
        check_chunks(chunks, dimensions)
        old = connection.execute(
            "SELECT chunks, text_bytes, loaded, claim FROM penstock.documents "
            "WHERE collection = %s AND id = %s FOR NO KEY UPDATE",
            (number, document_id),
        ).fetchone()
        if claim is not None and (old is None or old[3] != claim):
            raise ClaimGone
        old_chunks, old_bytes, is_new = (0, 0, True) if old is None else (int(old[0]), int(old[1]), not old[2])
        _check_totals(connection, len(chunks) - old_chunks, int(is_new), text_bytes - old_bytes, bounds)
        row = connection.execute(
            _PUT.encode(),
            (tenant, number, document_id, Jsonb(dict(metadata)), digest, text_bytes, len(chunks), filename),
        ).fetchone()
        document, written = _document(row[1:] if row else ()), row[0] if row else 0
        if old_chunks:
            limit(connection, until_s)
            connection.execute("DELETE FROM penstock.chunks WHERE collection = %s AND document = %s", (number, written))
        _insert_chunks(connection, tenant, (number, written), language, metadata, chunks, until_s)
        count_change(connection, number, int(is_new), len(chunks) - old_chunks, text_bytes - old_bytes)
    return document


def _insert_chunks(
    connection: Connection,
    tenant: str,
    place: tuple[int, int],
    language: str,
    metadata: Metadata,
    chunks: Sequence[NewChunk],
    until_s: float,
) -> None:
    """Insert the chunks of a document; `place` has the numbers of its collection and of itself."""
    number, document = place
    for first in range(0, len(chunks), _PIECE):
        limit(connection, until_s)
        piece = chunks[first : first + _PIECE]
        texts = [storable(chunk.text) for chunk in piece]
        connection.execute(
            "INSERT INTO penstock.chunks "
            "(tenant, collection, document, ordinal, tokens, text, metadata, embedding, words) "
            "SELECT %s, %s, %s, n - 1 + %s, tokens, text, %s, vector::vector, "
            # The mark is a word of every chunk; see the module `schema`.
            "to_tsvector(%s::regconfig, coalesce(runs, text)) || array_to_tsvector(ARRAY[penstock.mark(%s)]) "
            "FROM unnest(%s::int[], %s::text[], %s::text[], %s::text[]) WITH ORDINALITY "
            "AS piece (tokens, text, runs, vector, n)",
            (
                *(tenant, number, document, first, Jsonb(dict(metadata)), language, number),
                [chunk.tokens for chunk in piece],
                texts,
                [None if (runs := with_short_runs(text)) == text else runs for text in texts],
                [None if chunk.vector is None else vector_text(chunk.vector) for chunk in piece],
            ),
        )


def set_metadata(
    connection: Connection, tenant: str, name: str, document_id: str, metadata: Metadata, digest: str, until_s: float
) -> Document | None:
    """Replace the metadata of a document whose digest is still this one, and return it; None if it is not.

    Raises CollectionMissing.
    """
    with tenant_transaction(connection, tenant, until_s):
        number, _, _ = lock_collection(connection, tenant, name)
        values = (Jsonb(dict(metadata)), number, document_id, digest)
        row = connection.execute(_SET_METADATA.encode(), values).fetchone()
        if row is None:
            return None
        limit(connection, until_s)
        connection.execute(
            "UPDATE penstock.chunks SET metadata = %s WHERE collection = %s AND document = %s",
            (Jsonb(dict(metadata)), number, row[0]),
        )
        count_change(connection, number, 0, 0, 0)
    return _document(row[1:])


def delete(connection: Connection, tenant: str, name: str, document_id: str, until_s: float) -> bool:
    """Delete a document, and return whether there was one. Raises CollectionMissing."""
    with tenant_transaction(connection, tenant, until_s):
        number, _, _ = lock_collection(connection, tenant, name)
        old = connection.execute(
            "SELECT number, chunks, text_bytes, loaded FROM penstock.documents WHERE collection = %s AND id = %s "
            "FOR UPDATE",
            (number, document_id),
        ).fetchone()
        if old is None:
            return False
        connection.execute("DELETE FROM penstock.chunks WHERE collection = %s AND document = %s", (number, old[0]))
        connection.execute("DELETE FROM penstock.documents WHERE number = %s", (old[0],))
        count_change(connection, number, -int(old[3]), -int(old[1]), -int(old[2]))
    return True


def page(connection: Connection, tenant: str, name: str, after: str, limit_: int, until_s: float) -> list[Document]:
    """Return up to `limit_` documents whose ids come after `after` in the order of their bytes.

    Raises CollectionMissing.
    """
    query = (
        f"SELECT {_COLUMNS} FROM penstock.documents WHERE collection = %s AND loaded AND id > %s ORDER BY id LIMIT %s"  # noqa: S608 - constants
    )
    with tenant_transaction(connection, tenant, until_s):
        number = collection_number(connection, tenant, name)
        return [_document(row) for row in connection.execute(query.encode(), (number, after, min(limit_, MAX_PAGE)))]


def find(connection: Connection, tenant: str, name: str, document_id: str, until_s: float) -> Document | None:
    """Return a document, or None if the collection has none with this id. Raises CollectionMissing."""
    query = f"SELECT {_COLUMNS} FROM penstock.documents WHERE collection = %s AND id = %s AND loaded"  # noqa: S608 - constants
    with tenant_transaction(connection, tenant, until_s):
        number = collection_number(connection, tenant, name)
        row = connection.execute(query.encode(), (number, document_id)).fetchone()
    return None if row is None else _document(row)


def chunks(
    connection: Connection, tenant: str, name: str, document_id: str, first: int, limit_: int, until_s: float
) -> list[NewChunk]:
    """Return up to `limit_` chunks of a document, from the ordinal `first` on. Raises CollectionMissing."""
    with tenant_transaction(connection, tenant, until_s):
        number = collection_number(connection, tenant, name)
        rows = connection.execute(
            "SELECT c.text, c.tokens, c.embedding::real[] FROM penstock.chunks c JOIN penstock.documents d "
            "ON d.number = c.document WHERE c.collection = %s AND d.collection = %s AND d.id = %s AND c.ordinal >= %s "
            "ORDER BY c.ordinal LIMIT %s",
            (number, number, document_id, first, limit_),
        )
        return [NewChunk(text, tokens, vector) for text, tokens, vector in rows]


def vector_text(vector: Sequence[float]) -> str:
    """Return a vector as pgvector reads it."""
    return json.dumps([float(value) for value in vector])


def lock_collection(connection: Connection, tenant: str, name: str) -> tuple[int, str, int | None]:
    """Return number, language and dimensions of a collection, and keep others from changing it until the end.

    The sums of the collection are then true, whoever else loads documents. Others can still add documents to be loaded.
    """
    row = connection.execute(
        "SELECT number, language, dimensions FROM penstock.collections "
        "WHERE tenant = %s AND name = %s AND NOT gone FOR NO KEY UPDATE",
        (tenant, name),
    ).fetchone()
    if row is None:
        raise CollectionMissing(name)
    return int(row[0]), str(row[1]), row[2]


def collection_number(connection: Connection, tenant: str, name: str) -> int:
    row = connection.execute(
        "SELECT number FROM penstock.collections WHERE tenant = %s AND name = %s AND NOT gone", (tenant, name)
    ).fetchone()
    if row is None:
        raise CollectionMissing(name)
    return int(row[0])


def _check_totals(connection: Connection, chunks_: int, documents: int, text_bytes: int, bounds: TenantBounds) -> None:
    """Raise TooLarge if the tenant would have too much with so much more. The tenant is locked."""
    row = connection.execute(
        "SELECT coalesce(sum(chunks), 0)::bigint, coalesce(sum(documents), 0)::bigint, "
        "coalesce(sum(text_bytes), 0)::bigint FROM penstock.collections"
    ).fetchone()
    for what, total, more, most, setting in (
        ("chunks", row and row[0], chunks_, bounds.chunks, "PENSTOCK_MAX_TENANT_CHUNKS"),
        ("documents", row and row[1], documents, bounds.documents, "PENSTOCK_MAX_TENANT_DOCUMENTS"),
        ("bytes of text", row and row[2], text_bytes, bounds.text_bytes, "PENSTOCK_MAX_TENANT_DOCUMENT_BYTES"),
    ):
        would_have = int(total or 0) + more
        if more > 0 and would_have > most:
            raise TooLarge(f"the tenant would have {would_have} {what}, and may have {most} ({setting})")


def count_change(connection: Connection, number: int, documents: int, chunks_: int, text_bytes: int) -> None:
    connection.execute(
        "UPDATE penstock.collections SET version = version + 1, documents = documents + %s, chunks = chunks + %s, "
        "text_bytes = text_bytes + %s, loaded_at = clock_timestamp() WHERE number = %s",
        (documents, chunks_, text_bytes, number),
    )


def _document(row: Sequence[object]) -> Document:
    id_, metadata, digest, text_bytes, count, loaded_at, filename = row
    return Document(
        str(id_),
        as_metadata(metadata),
        str(digest),
        int(str(text_bytes)),
        int(str(count)),
        unix_ms(loaded_at),  # type: ignore[arg-type]  # psycopg reads timestamptz as datetime
        None if filename is None else str(filename),
    )


def as_metadata(stored: object) -> Metadata:
    """Return metadata as it was given: a list of texts as a tuple."""
    if not isinstance(stored, dict):
        return {}
    return {str(key): tuple(value) if isinstance(value, list) else value for key, value in stored.items()}
