"""Creates, lists and deletes collections. Each function is one transaction, or several small ones for a deletion."""

import secrets
from collections.abc import Sequence
from datetime import datetime
from typing import Any

from psycopg import errors

from shared.retrieval.connecting import Connection
from shared.retrieval.errors import CollectionExists, CollectionMissing, TooLarge
from shared.retrieval.records import Collection, NewCollection
from shared.retrieval.transactions import keeper_transaction, tenant_transaction

#: How many rows one statement deletes: each also leaves work behind for the indexes.
_ROWS = 2_000
#: How long one statement of a deletion may take, in seconds.
PIECE_S = 30.0

COLUMNS = (
    "tenant, name, id, model, dimensions, language, chunk_tokens, overlap_tokens, version, documents, chunks, "
    "text_bytes, created_at, loaded_at"
)
_INSERT = (
    """
INSERT INTO penstock.collections (id, tenant, name, model, dimensions, language, chunk_tokens, overlap_tokens)
VALUES (%s, %s, %s, %s, %s, %s, %s, %s)
RETURNING """
    + COLUMNS
)


def create(connection: Connection, tenant: str, new: NewCollection, most: int, until_s: float) -> Collection:
    """Create a collection. Raises CollectionExists, and TooLarge if the tenant has `most` collections."""
    with tenant_transaction(connection, tenant, until_s):
        row = connection.execute("SELECT count(*) FROM penstock.collections WHERE NOT gone").fetchone()
        if row is not None and row[0] >= most:
            raise TooLarge(f"the tenant has {row[0]} collections, and may have {most} (PENSTOCK_MAX_COLLECTIONS)")
        values = (
            secrets.token_hex(12),
            tenant,
            new.name,
            new.model,
            new.dimensions,
            new.language,
            new.chunk_tokens,
            new.overlap_tokens,
        )
        try:
            row = connection.execute(_INSERT.encode(), values).fetchone()
        except errors.UniqueViolation:
            raise CollectionExists(new.name) from None
    return as_collection(row or ())


def find(connection: Connection, tenant: str, name: str, until_s: float) -> Collection:
    """Return a collection of the tenant. Raises CollectionMissing."""
    query = f"SELECT {COLUMNS} FROM penstock.collections WHERE tenant = %s AND name = %s AND NOT gone"  # noqa: S608 - constants
    with tenant_transaction(connection, tenant, until_s):
        row = connection.execute(query.encode(), (tenant, name)).fetchone()
    if row is None:
        raise CollectionMissing(name)
    return as_collection(row)


def find_all(connection: Connection, tenant: str, until_s: float) -> list[Collection]:
    """Return the collections of the tenant by name."""
    query = f"SELECT {COLUMNS} FROM penstock.collections WHERE tenant = %s AND NOT gone ORDER BY name"  # noqa: S608 - as above
    with tenant_transaction(connection, tenant, until_s):
        return [as_collection(row) for row in connection.execute(query.encode(), (tenant,))]


def give_up(connection: Connection, tenant: str, name: str, until_s: float) -> int:
    """Make a collection invisible and its name free; return its number, for `clear`. Raises CollectionMissing."""
    with tenant_transaction(connection, tenant, until_s):
        row = connection.execute(
            "UPDATE penstock.collections SET gone = true WHERE tenant = %s AND name = %s AND NOT gone RETURNING number",
            (tenant, name),
        ).fetchone()
    if row is None:
        raise CollectionMissing(name)
    return int(row[0])


def clear_piece(connection: Connection, tenant: str, number: int, until_s: float) -> bool:
    """Delete some rows of a collection that was given up, and return whether none are left.

    The last row to be deleted is that of the collection, so that an interrupted deletion can be continued.
    """
    with tenant_transaction(connection, tenant, until_s):
        for table in ("chunks", "documents"):
            query = (
                f"DELETE FROM penstock.{table} WHERE ctid = ANY (ARRAY("  # noqa: S608 - one of two constants
                f"SELECT ctid FROM penstock.{table} WHERE collection = %s LIMIT {_ROWS}))"
            )
            if connection.execute(query.encode(), (number,)).rowcount:
                return False
        connection.execute("DELETE FROM penstock.collections WHERE number = %s AND gone", (number,))
    return True


def given_up(connection: Connection, tenant: str, until_s: float) -> list[int]:
    """Return the numbers of the tenant's collections whose deletion has begun and not ended."""
    with tenant_transaction(connection, tenant, until_s):
        rows = connection.execute("SELECT number FROM penstock.collections WHERE tenant = %s AND gone", (tenant,))
        return [int(row[0]) for row in rows]


def abandoned(connection: Connection, until_s: float) -> list[tuple[str, int]]:
    """Return tenant and number of each collection of any tenant whose deletion has begun and not ended."""
    with keeper_transaction(connection, until_s):
        rows = connection.execute(
            "SELECT tenant, number FROM penstock.collections WHERE gone ORDER BY number LIMIT 100"
        )
        return [(str(tenant), int(number)) for tenant, number in rows]


def rows_left(connection: Connection, tenant: str, until_s: float) -> int:
    """Return how many rows of a tenant are in the database. Each chunk belongs to a document that is counted."""
    with keeper_transaction(connection, until_s):
        row = connection.execute(
            "SELECT (SELECT count(*) FROM penstock.collections WHERE tenant = %s) "
            "+ (SELECT count(*) FROM penstock.documents WHERE tenant = %s)",
            (tenant, tenant),
        ).fetchone()
    return int(row[0]) if row else 0


def as_collection(row: Sequence[Any]) -> Collection:
    """Return the collection in a row with COLUMNS."""
    created_at, loaded_at = row[12:]
    return Collection(*(*row[:12], unix_ms(created_at), None if loaded_at is None else unix_ms(loaded_at)))


def unix_ms(at: datetime) -> int:
    """Return a time of the database as Unix time in ms."""
    return int(at.timestamp() * 1000)
