"""How much the database keeps: for each collection, and in all."""

from dataclasses import dataclass

from shared.retrieval.connecting import Connection
from shared.retrieval.indexes import index_name
from shared.retrieval.tenant_collections import unix_ms
from shared.retrieval.transactions import keeper_transaction

#: The most collections that are listed, the largest first.
_MOST = 1_000


@dataclass(frozen=True, slots=True)
class CollectionSize:
    """One collection of one tenant. `indexed` says whether an index of its vectors is in use; times are Unix times."""

    tenant: str
    name: str
    documents: int
    chunks: int
    text_bytes: int
    loaded_ms: int | None
    indexed: bool


@dataclass(frozen=True, slots=True)
class Sizes:
    """The largest collections, and the sums over all. `disk_bytes` is the size of all tables and indexes."""

    collections: tuple[CollectionSize, ...]
    tenants: int
    count: int
    documents: int
    chunks: int
    text_bytes: int
    disk_bytes: int


def read_sizes(connection: Connection, until_s: float) -> Sizes:
    """Return the sizes. Raises as `keeper_transaction` does."""
    with keeper_transaction(connection, until_s):
        sums = connection.execute(
            "SELECT count(DISTINCT tenant), count(*), coalesce(sum(documents), 0)::bigint, "
            "coalesce(sum(chunks), 0)::bigint, coalesce(sum(text_bytes), 0)::bigint, "
            "(SELECT sum(pg_total_relation_size(oid))::bigint FROM pg_class "
            "WHERE relnamespace = 'penstock'::regnamespace AND relkind = 'r') "
            "FROM penstock.collections WHERE NOT gone"
        ).fetchone()
        rows = connection.execute(
            "SELECT tenant, name, documents, chunks, text_bytes, loaded_at, coalesce((SELECT i.indisvalid "
            "FROM pg_index i WHERE i.indexrelid = to_regclass(format(%s, number))), false) "
            "FROM penstock.collections WHERE NOT gone ORDER BY chunks DESC, number LIMIT %s",
            (f"penstock.{index_name('%s')}", _MOST),
        )
        collections = tuple(
            CollectionSize(*(*row[:5], None if row[5] is None else unix_ms(row[5]), row[6])) for row in rows
        )
    return Sizes(collections, *(sums or ()))
