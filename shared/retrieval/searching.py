"""Searches one collection by vectors and by words, one after the other, within the time of the request.

Vectors of a small collection are compared with the query one by one. A large one has an index (HNSW), which finds
nearly the same. The module `words` finds chunks by words. The score of a chunk is relative to what all words of the
query would count.
"""

import math
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import psycopg

from shared.retrieval import words
from shared.retrieval.connecting import Connection
from shared.retrieval.errors import CollectionMissing, InvalidInput, OutOfTime
from shared.retrieval.filters import to_sql
from shared.retrieval.fusion import fuse_halves
from shared.retrieval.indexes import index_name, indexed_type
from shared.retrieval.records import Found, Half, Passage, Query, check_vector
from shared.retrieval.tenant_documents import as_metadata, vector_text
from shared.retrieval.transactions import limit, tenant_transaction

#: How many passages each half contributes to a hybrid search. One that is far down in both may be among the best.
_LEAST_OF_HALF = 50
#: The part of the time that is left which the first half may take.
_FIRST_PART = 0.7
#: How many chunks an index visits at most for a filter that few pass.
_MAX_SCANNED = 20_000

_EXACT = """
SELECT d.id, c.ordinal, c.text, c.tokens, 1 - c.distance, c.metadata, d.filename
FROM (
  SELECT document, ordinal, text, tokens, metadata, {left} <=> {right} AS distance
  FROM penstock.chunks WHERE collection = {number} AND embedding IS NOT NULL AND {filter}
  ORDER BY {left} <=> {right} LIMIT %s
) c JOIN penstock.documents d ON d.number = c.document
ORDER BY c.distance, c.document, c.ordinal
"""


def search(
    connection: Connection, tenant: str, name: str, query: Query, until_s: float, note: Callable[[Found], None]
) -> Found:
    """Return the best passages of a collection.

    `note` is called with what has been found whenever a half has ended. The half for which no time was left is in
    `omitted`; if none has ended, the error of the first is raised. Raises CollectionMissing, InvalidInput, OutOfTime,
    DatabaseAway and psycopg.Error.
    """
    wanted = query.halves
    if not wanted:
        raise InvalidInput("query", query.text, f"a search by {query.mode} needs a text or a vector")
    lists: dict[Half, list[Passage]] = {}
    left, row = list(wanted), None
    while left:
        end_s = _end_of_half(until_s, len(left))
        try:
            with tenant_transaction(connection, tenant, end_s, _settings(query)):
                row = row or _find_collection(connection, tenant, name)
                while left:
                    if len(left) < len(wanted):
                        end_s = _end_of_half(until_s, len(left))
                        limit(connection, end_s)
                    half = left.pop(0)
                    found = _half(connection, half, row, query, end_s)
                    lists[half] = [_passage(each) for each in found if not math.isnan(each[4])]
                    note(_found(lists, wanted, row.version, query.k))
        except psycopg.errors.QueryCanceled:
            # The transaction has ended; the other half has one of its own.
            if row is None:
                raise
        except OutOfTime:
            break
    if row is None or not lists:
        raise OutOfTime(started=True)
    return _found(lists, wanted, row.version, query.k)


def _end_of_half(until_s: float, halves: int) -> float:
    """Return when a half must have ended if `halves` are left: a slow half leaves some time to the other one."""
    now_s = time.monotonic()
    return until_s if halves == 1 else now_s + _FIRST_PART * (until_s - now_s)


def _found(lists: dict[Half, list[Passage]], wanted: Sequence[Half], version: int, k: int) -> Found:
    omitted = frozenset(half for half in wanted if half not in lists)
    return Found(fuse_halves({half: lists[half] for half in wanted if half in lists}, k), version, omitted)


@dataclass(frozen=True, slots=True)
class _Row:
    """The collection of a search."""

    number: int
    version: int
    dimensions: int | None
    language: str
    chunks: int
    has_index: bool


def _find_collection(connection: Connection, tenant: str, name: str) -> _Row:
    row = connection.execute(
        "SELECT c.number, c.version, c.dimensions, c.language, c.chunks, "
        "(SELECT i.indisvalid FROM pg_index i WHERE i.indexrelid = to_regclass(format(%s, c.number))) "
        "FROM penstock.collections c WHERE c.tenant = %s AND c.name = %s AND NOT c.gone",
        (f"penstock.{index_name('%s')}", tenant, name),
    ).fetchone()
    if row is None:
        raise CollectionMissing(name)
    number, version, dimensions, language, chunks, is_valid = row
    return _Row(int(number), int(version), dimensions, str(language), int(chunks), has_index=bool(is_valid))


def _settings(query: Query) -> dict[str, str]:
    """Return the settings of a search's transaction. An index scan continues until enough rows pass the filter."""
    return {
        "max_parallel_workers_per_gather": "0",
        "jit": "off",
        "work_mem": "32MB",
        "hnsw.ef_search": str(max(64, 2 * _of_half(query))),
        "hnsw.iterative_scan": "strict_order",
        "hnsw.max_scan_tuples": str(_MAX_SCANNED),
    }


def _of_half(query: Query) -> int:
    """Return how many passages each half has to find."""
    return query.k if len(query.halves) == 1 else max(_LEAST_OF_HALF, 2 * query.k)


def _half(connection: Connection, half: Half, row: _Row, query: Query, until_s: float) -> Iterable[Sequence[Any]]:
    """Return the rows that one half has found."""
    if half == "words":
        collection = row.number, row.language, row.chunks
        return words.best_rows(connection, collection, query.text or "", query.filter, _of_half(query), until_s)
    condition, values = ("true", []) if query.filter is None else to_sql(query.filter)
    check_vector(query.vector or (), row.dimensions)
    vector = vector_text(query.vector or ())
    type_ = indexed_type(row.dimensions or 0)
    left, right = (f"(embedding::{type_})", f"%s::{type_}") if row.has_index else ("embedding", "%s::vector")
    # psycopg reads `%` in a statement as a placeholder; the condition has its own.
    sql = _EXACT.format(number=row.number, filter=condition, left=left, right=right)
    return connection.execute(sql.encode(), [vector, *values, vector, _of_half(query)])


def _passage(row: Sequence[Any]) -> Passage:
    document_id, ordinal, text, tokens, score, metadata, filename = row
    score = min(1.0, max(0.0, float(score)))
    return Passage(document_id, ordinal, text, tokens, score, as_metadata(metadata), filename)
