"""Searches a collection for a query within a budget, and says what was left out."""

import time

from shared.retrieval.errors import InvalidFilter, OutOfTime, SearchesStopped
from shared.retrieval.filters import Filter, parse_filter
from shared.retrieval.records import Found, Half, Mode, Part, Query
from web.http.api_errors import invalid_field
from web.jobs.callers import Caller
from web.retrieval.access import database_errors, database_of
from web.retrieval.bodies import SearchBody
from web.retrieval.query_vectors import QueryVectors, vector_until
from web.retrieval.reranking import CANDIDATES, check_reranker, reranked
from web.runtime.context import DoorContext

#: The halves of a search in each mode.
_HALVES: dict[Mode, frozenset[Half]] = {
    "hybrid": frozenset({"vector", "words"}),
    "vector": frozenset({"vector"}),
    "words": frozenset({"words"}),
}


def search_collection(
    context: DoorContext, caller: Caller, name: str, body: SearchBody, vectors: QueryVectors | None = None
) -> Found:
    """Return the passages of a collection for a query, the best first, by the end of its budget.

    If there is no vector of the query in time, words alone are searched; if the search does not end in time, nothing is
    found. A reranker gets the time that is left; if it is not enough, the passages have the order of the search.
    `omitted` says which. `vectors` are those of a request with several searches. Raises ApiError.
    """
    vectors = QueryVectors(context, caller) if vectors is None else vectors
    until = time.monotonic() + body.budget_ms / 1000
    if body.rerank is None:
        return _searched(context, caller, name, body, body.k, until, vectors)
    check_reranker(context, caller, body.rerank.model)
    found = _searched(context, caller, name, body, max(body.k, CANDIDATES), until, vectors)
    model, private = body.rerank.model, body.private
    passages = reranked(context, caller, model, body.query, found.passages, until, private=private)
    omitted: frozenset[Part] = frozenset({"rerank"}) if passages is None else frozenset()
    best = found.passages if passages is None else passages
    return Found(best[: body.k], found.version, found.omitted | omitted)


def _searched(
    context: DoorContext, caller: Caller, name: str, body: SearchBody, k: int, until: float, vectors: QueryVectors
) -> Found:
    """Return the `k` best passages without a reranker."""
    database, wanted = database_of(context), _filter(body)
    try:
        with database_errors(caller.tenant, name, passes_out_of_time=True):
            # Before the query is embedded at the tenant's cost.
            database.check_searches(caller.tenant)
            collection = database.collection(caller.tenant, name, until=until)
    except (OutOfTime, SearchesStopped):
        return Found((), 0, _HALVES[body.mode])
    if body.mode == "vector" and collection.model is None:
        raise invalid_field("mode", f"mode='vector': collection {name[:80]!r} has no embedding model")
    vector = None
    searches_vectors = body.mode != "words" and collection.model is not None
    if searches_vectors and collection.model is not None:
        vector_by = vector_until(time.monotonic(), until)
        vector = vectors.vector(collection.model, body.query, vector_by, private=body.private)
    mode: Mode = "words" if vector is None else body.mode
    query = Query(None if mode == "vector" else body.query, vector, k, wanted, mode)
    omitted = _HALVES["vector"] if searches_vectors and vector is None else frozenset[Half]()
    try:
        with database_errors(caller.tenant, name, passes_out_of_time=True):
            found = database.search(caller.tenant, name, query, until)
    except (OutOfTime, SearchesStopped):
        return Found((), collection.version, omitted | _HALVES[mode])
    return Found(found.passages, found.version, found.omitted | omitted)


def _filter(body: SearchBody) -> Filter | None:
    if body.filter is None:
        return None
    try:
        return parse_filter(body.filter)
    except InvalidFilter as error:
        raise invalid_field(error.field, str(error)) from None
