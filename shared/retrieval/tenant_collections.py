"""Creates, lists and deletes collections. Each function is one transaction, or several small ones for a deletion."""

import re
import secrets
import time
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from psycopg import errors
from psycopg.types.json import Jsonb

from shared.retrieval.connecting import Connection
from shared.retrieval.errors import CollectionExists, CollectionMissing, TooLarge
from shared.retrieval.file_records import FileCounts
from shared.retrieval.pages import Page, cut_page, page_clauses
from shared.retrieval.records import STORE_PREFIX, Collection, NewCollection
from shared.retrieval.schema import LOCK_CLASS
from shared.retrieval.transactions import keeper_transaction, tenant_transaction

_STORE_ID = re.compile(re.escape(STORE_PREFIX) + "[0-9a-f]{1,40}")
#: How many rows one statement deletes: each also leaves work behind for the indexes.
_ROWS = 2_000
#: How long one statement of a deletion may take, in seconds.
PIECE_S = 30.0

COLUMNS = (
    "tenant, name, id, model, dimensions, language, chunk_tokens, overlap_tokens, version, documents, chunks, "
    "text_bytes, created_at, loaded_at, title, description, labels"
)
_INSERT = (
    """
INSERT INTO penstock.collections
  (id, tenant, name, model, dimensions, language, chunk_tokens, overlap_tokens, title, description, labels)
VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s)
RETURNING """
    + COLUMNS
)


def create(connection: Connection, tenant: str, new: NewCollection, most: int, until_s: float) -> Collection:
    """Create a collection. Raises CollectionExists, and TooLarge if the tenant has `most` collections."""
    with tenant_transaction(connection, tenant, until_s):
        lock_tenant(connection, tenant)
        row = connection.execute("SELECT count(*) FROM penstock.collections WHERE NOT gone").fetchone()
        if row is not None and row[0] >= most:
            raise TooLarge(f"the tenant has {row[0]} collections, and may have {most} (PENSTOCK_MAX_COLLECTIONS)")
        id_ = new_id() if new.id is None or _is_taken(connection, new.id) else new.id
        values = (
            id_,
            tenant,
            new.name or STORE_PREFIX + id_,
            new.model,
            new.dimensions,
            new.language,
            new.chunk_tokens,
            new.overlap_tokens,
            new.title,
            new.description,
            Jsonb(dict(new.labels)),
        )
        try:
            row = connection.execute(_INSERT.encode(), values).fetchone()
        except errors.UniqueViolation:
            raise CollectionExists(new.name or id_) from None
    return as_collection(row or ())


def _is_taken(connection: Connection, id_: str) -> bool:
    """Return whether a collection of any tenant has an id."""
    row = connection.execute("SELECT penstock.has_collection(%s)", (id_,)).fetchone()
    return bool(row and row[0])


def new_id() -> str:
    """Return an id whose order among others is that of their creation, so that pages of lists begin behind an id."""
    return f"{time.time_ns() // 1_000_000:011x}{secrets.token_hex(7)[:13]}"


def lock_tenant(connection: Connection, tenant: str) -> None:
    """Let no other process add anything to the tenant's collections until the end of the transaction.

    Sums that are compared with bounds are then true.
    """
    connection.execute("SELECT pg_advisory_xact_lock(hashtextextended(%s, %s))", (tenant, LOCK_CLASS))


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


def find_store(connection: Connection, tenant: str, store_id: str, until_s: float) -> Collection:
    """Return the collection of the tenant that is this vector store. Raises CollectionMissing."""
    query = f"SELECT {COLUMNS} FROM penstock.collections WHERE tenant = %s AND id = %s AND NOT gone"  # noqa: S608 - as above
    with tenant_transaction(connection, tenant, until_s):
        row = connection.execute(query.encode(), (tenant, _stored_id(store_id))).fetchone()
    if row is None:
        raise CollectionMissing(store_id)
    return as_collection(row)


def page(connection: Connection, tenant: str, wanted: Page, until_s: float) -> tuple[list[Collection], bool]:
    """Return a page of the tenant's collections by id, and whether there are more behind it."""
    condition, end, values = page_clauses(wanted)
    query = f"SELECT {COLUMNS} FROM penstock.collections WHERE tenant = %s AND NOT gone AND {condition} {end}"  # noqa: S608 - as above
    with tenant_transaction(connection, tenant, until_s):
        rows = connection.execute(query.encode(), (tenant, *values))
        return cut_page([as_collection(row) for row in rows], wanted)


def change(connection: Connection, tenant: str, store_id: str, fields: Mapping[str, Any], until_s: float) -> Collection:
    """Change the title, the description or the labels of a collection. Raises CollectionMissing."""
    changes = ", ".join(f"{name} = %s" for name in ("title", "description", "labels") if name in fields)
    if not changes:
        return find_store(connection, tenant, store_id, until_s)
    values = [fields[name] for name in ("title", "description") if name in fields]
    values += [Jsonb(dict(fields["labels"]))] if "labels" in fields else []
    query = f"UPDATE penstock.collections SET {changes} WHERE tenant = %s AND id = %s AND NOT gone RETURNING {COLUMNS}"  # noqa: S608 - as above
    with tenant_transaction(connection, tenant, until_s):
        row = connection.execute(query.encode(), (*values, tenant, _stored_id(store_id))).fetchone()
    if row is None:
        raise CollectionMissing(store_id)
    return as_collection(row)


def file_counts(connection: Connection, tenant: str, ids: Sequence[str], until_s: float) -> dict[str, FileCounts]:
    """Return how many documents are in each state, for each of these collections that has any."""
    found = dict[str, list[tuple[str, int]]]()
    with tenant_transaction(connection, tenant, until_s):
        rows = connection.execute(
            "SELECT c.id, d.state, count(*) FROM penstock.collections c JOIN penstock.documents d "
            "ON d.tenant = c.tenant AND d.collection = c.number WHERE c.tenant = %s AND c.id = ANY (%s) GROUP BY 1, 2",
            (tenant, list(ids)),
        )
        for id_, state, count in rows:
            found.setdefault(str(id_), []).append((str(state), int(count)))
    return {id_: FileCounts.of(states) for id_, states in found.items()}


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
    created_at, loaded_at = row[12:14]
    return Collection(*(*row[:12], unix_ms(created_at), None if loaded_at is None else unix_ms(loaded_at), *row[14:]))


def _stored_id(store_id: str) -> str:
    """Return the id of a collection that is this vector store. Raises CollectionMissing if none can be."""
    if not _STORE_ID.fullmatch(store_id):
        raise CollectionMissing(store_id)
    return store_id.removeprefix(STORE_PREFIX)


def unix_ms(at: datetime) -> int:
    """Return a time of the database as Unix time in ms."""
    return int(at.timestamp() * 1000)
