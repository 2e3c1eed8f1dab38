"""Searches a vector store for one or several queries."""

import time
from dataclasses import dataclass

from shared.retrieval.errors import InvalidFilter
from shared.retrieval.filters import parse_filter
from shared.retrieval.fusion import fuse_queries
from shared.retrieval.records import Part, Passage
from web.http.api_errors import ApiError, invalid_field
from web.jobs.callers import Caller
from web.retrieval.access import vector_store_of
from web.retrieval.bodies import SearchBody
from web.retrieval.query_vectors import QueryVectors
from web.retrieval.searching import search_collection
from web.runtime.context import DoorContext
from web.vector_stores.bodies import SearchStoreBody

#: How long all queries of a search may take, in ms.
_BUDGET_MS = 10_000


@dataclass(frozen=True)
class StoreFound:
    """The passages of a search, the best first, and the halves that were not searched in time, for some query."""

    passages: tuple[Passage, ...]
    omitted: tuple[Part, ...]


def search_store(context: DoorContext, caller: Caller, store_id: str, body: SearchStoreBody) -> StoreFound:
    """Return the best passages of a vector store for the queries.

    The passages of several queries are joined by their ranks. Raises ApiError, also if nothing was searched in time.
    """
    _check(body)
    collection = vector_store_of(context, caller.tenant, store_id)
    halves = {"words"} if collection.model is None else {"words", "vector"}
    until, vectors = time.monotonic() + _BUDGET_MS / 1000, QueryVectors(context, caller)
    lists, omitted, searched = list[tuple[Passage, ...]](), set[Part](), False
    for left, query in zip(range(len(body.queries), 0, -1), body.queries, strict=True):
        budget_ms = max(1, int(1000 * (until - time.monotonic()) / left))
        wanted = SearchBody(query=query, k=body.max_num_results, filter=body.filters, budget_ms=budget_ms)
        found = search_collection(context, caller, collection.name, wanted, vectors)
        lists.append(found.passages)
        omitted |= found.omitted
        searched = searched or not halves <= found.omitted
    if not searched:
        raise ApiError("retrieval_timeout", f"the vector store was not searched within {_BUDGET_MS} ms; retry")
    passages = fuse_queries(lists, body.max_num_results)
    return StoreFound(tuple(each for each in passages if each.score >= body.least_score), tuple(sorted(omitted)))


def _check(body: SearchStoreBody) -> None:
    if body.rewrite_query:
        message = "rewrite_query=true is not supported: queries are searched as they are; leave it out"
        raise ApiError("unsupported_parameter", message, param="rewrite_query")
    if body.filters is not None:
        try:
            parse_filter(body.filters, "filters")
        except InvalidFilter as error:
            raise invalid_field(error.field, str(error)) from None
