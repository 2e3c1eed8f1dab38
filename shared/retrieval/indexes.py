"""Makes an index of the vectors of each large collection, drops those that are of no use, and bounds their number.

One index (HNSW) for each large collection, and not one for all: a search would otherwise visit the vectors of other
tenants, and vectors of different models have different lengths. Only one process at a time changes indexes, and it
does so without keeping others from reading and writing.
"""

import time
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import psycopg
from psycopg import sql

from shared.log import get_logger
from shared.retrieval.connecting import Connection, reason_of
from shared.retrieval.schema import INDEX_LOCK, LOCK_CLASS
from shared.retrieval.transactions import keeper_transaction

log = get_logger()

#: The longest vectors that pgvector can index as `vector`; longer ones are indexed with half the precision.
_MAX_VECTOR = 2_000
#: How long a query of the catalog may take, and how long an index waits for older transactions, in seconds.
_QUERY_S, _LOCK_S = 30.0, 60
_PREFIX = "chunks_vectors_"


@dataclass(frozen=True, slots=True)
class Indexes:
    """The state of the indexes: how many there are, and how many large collections have none."""

    made: int
    waiting: int


@dataclass(frozen=True, slots=True)
class LargeCollection:
    """A collection that is large enough for an index: its number, its tenant, and the length of its vectors."""

    number: int
    tenant: str
    dimensions: int


def index_name(number: object) -> str:
    """Return the name of the index of a collection's vectors, in the schema penstock."""
    return f"{_PREFIX}{number}"


def indexed_type(dimensions: int) -> str:
    """Return the type as which vectors of this length are indexed."""
    return f"{'vector' if dimensions <= _MAX_VECTOR else 'halfvec'}({dimensions})"


def count(connection: Connection, from_chunks: int) -> Indexes:
    """Return how many indexes are in use, and how many collections of at least `from_chunks` chunks have none."""
    wanted, existing = _numbers(_large(connection, from_chunks)), _existing(connection)
    usable = {number for number, is_valid in existing.items() if is_valid}
    return Indexes(len(usable), len(wanted - usable))


def by_turns(large: Sequence[LargeCollection], indexed: Collection[int]) -> list[LargeCollection]:
    """Return collections that are sorted by size in the order in which they get indexes.

    Tenants take turns, so that none has more indexes than another one that wants some. A collection with an index
    comes before the others of its tenant, and before those of other tenants with the same number of indexes: an index
    moves only to a tenant that has fewer.
    """
    turns, ordered = Counter[str](), list[tuple[int, LargeCollection]]()
    for each in sorted(large, key=lambda each: each.number not in indexed):
        ordered.append((turns[each.tenant], each))
        turns[each.tenant] += 1
    ordered.sort(key=lambda entry: (entry[0], entry[1].number not in indexed))
    return [each for _, each in ordered]


def tidy(connection: Connection, from_chunks: int, most: int, memory_bytes: int) -> Indexes | None:
    """Drop useless indexes, make missing ones, and return their state; None if another process is doing that now.

    Useless are indexes whose making was interrupted, and those of collections that are gone, or have become smaller
    than half of `from_chunks`. At most `most` indexes are kept, which tenants share. Each is made
    in up to `memory_bytes` of the server's memory. An index that cannot be made keeps no other from being made. Raises
    psycopg.Error, also then, at the end.
    """
    failed: psycopg.Error | None = None
    with _lock(connection) as is_mine:
        if not is_mine:
            return None
        connection.execute(f"SET maintenance_work_mem = '{memory_bytes // 1024}kB'".encode())
        existing = _existing(connection)
        kept = _numbers(_large(connection, max(1, from_chunks // 2)))
        for number, is_valid in existing.items():
            if not is_valid or number not in kept:
                _drop(connection, number)
        have = {number for number, is_valid in existing.items() if is_valid and number in kept}
        wanted = by_turns(_large(connection, from_chunks, have), have)
        passed = 0
        for each in wanted:
            if passed >= most:
                break
            try:
                if each.number not in have:
                    _make(connection, each.number, each.dimensions)
                    have.add(each.number)
                    _give_up_last(connection, wanted, have, most)
                passed += 1
            except psycopg.Error as error:
                if connection.closed:
                    raise
                failed = error
                # Loads would write into what was made of it.
                _drop(connection, each.number)
        _give_up_last(connection, wanted, have, most)
        if failed is not None:
            raise failed
        return Indexes(len(have), len(_numbers(_large(connection, from_chunks)) - have))


def _give_up_last(connection: Connection, wanted: Sequence[LargeCollection], have: set[int], most: int) -> None:
    """Drop the indexes of the last collections as long as there are more than `most`."""
    for number in [each.number for each in wanted if each.number in have][most:]:
        _drop(connection, number)
        have.discard(number)


def drop_of(connection: Connection, numbers: list[int]) -> bool:
    """Drop the indexes of these collections, and return whether that was possible now.

    It is not while another process makes an index.
    """
    with _lock(connection) as is_mine:
        if is_mine:
            for number in _existing(connection).keys() & set(numbers):
                _drop(connection, number)
        return is_mine


@contextmanager
def _lock(connection: Connection) -> Iterator[bool]:
    """Yield whether this process is the one that may change indexes until the end of the block."""
    row = connection.execute("SELECT pg_try_advisory_lock(%s, %s)", (LOCK_CLASS, INDEX_LOCK)).fetchone()
    is_mine = bool(row and row[0])
    if is_mine:
        # The user of the database may have limits of its own, which are not meant for indexes of large collections.
        connection.execute(f"SET lock_timeout = '{_LOCK_S}s'; SET statement_timeout = 0".encode())
    try:
        yield is_mine
    finally:
        if is_mine and not connection.closed:
            connection.execute("SELECT pg_advisory_unlock(%s, %s)", (LOCK_CLASS, INDEX_LOCK))


def _existing(connection: Connection) -> dict[int, bool]:
    """Return the numbers of the collections with an index, and whether it is complete."""
    rows = connection.execute(
        "SELECT c.relname, i.indisvalid FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid "
        "WHERE i.indrelid = 'penstock.chunks'::regclass AND starts_with(c.relname, %s)",
        (_PREFIX,),
    )
    return {int(name.removeprefix(_PREFIX)): is_valid for name, is_valid in rows}


def _large(connection: Connection, from_chunks: int, indexed: Collection[int] = ()) -> list[LargeCollection]:
    """Return the collections of at least this size, and those that have an index, the largest first."""
    with keeper_transaction(connection, time.monotonic() + _QUERY_S):
        rows = connection.execute(
            "SELECT number, tenant, dimensions FROM penstock.collections "
            "WHERE (chunks >= %s OR number = ANY(%s)) AND dimensions IS NOT NULL AND NOT gone "
            "ORDER BY chunks DESC, number",
            (from_chunks, list(indexed)),
        )
        return [LargeCollection(int(number), str(tenant), int(dimensions)) for number, tenant, dimensions in rows]


def _numbers(large: Sequence[LargeCollection]) -> set[int]:
    return {each.number for each in large}


def _make(connection: Connection, number: int, dimensions: int) -> None:
    type_ = indexed_type(dimensions)
    name = sql.Identifier(index_name(number)).as_string(connection)
    began_s = time.monotonic()
    # The types and operators of pgvector are found by the search path of the session.
    connection.execute(f"SET search_path = {connection.search_path}".encode())
    try:
        connection.execute(
            f"CREATE INDEX CONCURRENTLY {name} ON penstock.chunks USING hnsw "
            f"((embedding::{type_}) {type_.partition('(')[0]}_cosine_ops) WHERE collection = {int(number)}".encode()
        )
    except psycopg.Error as error:
        log.warning("retrieval.index_failed", collection=number, reason=reason_of(error))
        raise
    log.info("retrieval.index", collection=number, seconds=round(time.monotonic() - began_s, 1))


def _drop(connection: Connection, number: int) -> None:
    name = sql.Identifier("penstock", index_name(number)).as_string(connection)
    connection.execute(f"DROP INDEX CONCURRENTLY IF EXISTS {name}".encode())
