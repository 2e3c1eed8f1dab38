"""Finds the passages for a query within a budget of time: in the collection, in the cache, or fewer of them, or none.

Each call of the database and of the embedding pool ends by the end of the budget, whatever they do.
"""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from enum import StrEnum

from shared.errors import StoreUnavailable
from shared.jobs.job_history import Change
from shared.log import LimitedEvent
from shared.retrieval.errors import CollectionMissing, DatabaseAway, OutOfTime, SearchesStopped
from shared.retrieval.filters import Filter
from shared.retrieval.records import Passage, Query
from web.http.api_errors import ApiError, quoted
from web.jobs.callers import Caller
from web.retrieval.cached import CachedPassages, load, query_digest
from web.retrieval.query_vectors import QueryVectors, vector_until
from web.retrieval.reranking import CANDIDATES, reranked
from web.runtime.context import DoorContext

_AWAY = LimitedEvent("retrieval.database_away")


class Why(StrEnum):
    """Why the passages are not those of a whole search; clients and metrics get the word."""

    BUDGET = "budget"
    DATABASE_AWAY = "database_away"
    SEARCHES_STOPPED = "searches_stopped"
    EMBEDDING_AWAY = "embedding_away"
    RERANKER_AWAY = "reranker_away"


class Source(StrEnum):
    """Where the passages come from; `SEARCH` and `CACHE` are those of a whole search in the present version."""

    SEARCH = "search"
    CACHE = "cache"
    #: Those of an earlier search, perhaps in an earlier version of the collection.
    CACHED = "cached"
    WORDS = "words"
    VECTOR = "vector"
    NONE = "none"


@dataclass(frozen=True)
class Wanted:
    """A search: its query, and until when it is waited for, in seconds of the clock."""

    collection: str
    query: str
    k: int
    filter: Filter | None
    until_s: float
    private: bool = False
    #: Where the request names a vector store, whose id `collection` is then; "" if it is the name of a collection.
    store_at: str = ""
    #: The name of the model that orders what was found.
    reranker: str | None = None

    @property
    def missing(self) -> ApiError:
        """The error if the tenant has no such collection."""
        param, code = self.store_at or "retrieval.collection", "collection_not_found"
        if self.store_at:
            code = "vector_store_not_found"
        kind = "vector store" if self.store_at else "collection"
        return ApiError(code, f"{param}={quoted(self.collection)}: there is no such {kind}", param=param)


@dataclass(frozen=True)
class FoundPassages:
    """The passages, the best first, where they come from, and why not from a whole search ("" if they do)."""

    passages: tuple[Passage, ...]
    source: Source
    why: Why | None = None
    #: The changes of a search in several vector stores.
    of_stores: tuple[Change, ...] | None = None
    #: The reranker that did not order the passages in time, and why.
    unranked: Change | None = None

    @property
    def changes(self) -> tuple[Change, ...]:
        """The changes that clients are told."""
        if self.of_stores is not None:
            return self.of_stores
        changes = () if self.why is None else (Change("retrieval", "search", self.source.value, self.why.value),)
        return changes if self.unranked is None else (*changes, self.unranked)


def find_passages(context: DoorContext, caller: Caller, wanted: Wanted, vectors: QueryVectors) -> FoundPassages:
    """Return the passages for a query, by the end of its time. `vectors` are those of the whole request.

    Raises ApiError if the tenant has no such collection, and StoreUnavailable.
    """
    modes = ["hybrid", "store"] if wanted.store_at else ["hybrid"]
    if wanted.reranker is not None:
        modes.append(f"rerank {wanted.reranker}")
    digest = query_digest(wanted.collection, wanted.query, wanted.filter, wanted.k, modes)
    looked = context.passage_cache.find(caller.tenant, digest)
    cached = None if looked.found is None else load(looked.found.content)
    search = _Search(context, caller, wanted, cached, vectors)
    try:
        found = search.run()
    except CollectionMissing:
        raise wanted.missing from None
    except OutOfTime:
        found = FoundPassages((), Source.NONE, Why.BUDGET)
    except SearchesStopped:
        found = FoundPassages((), Source.NONE, Why.SEARCHES_STOPPED)
    except DatabaseAway as error:
        _AWAY.log("warning", tenant=caller.tenant, error=error.reason)
        found = FoundPassages((), Source.NONE, Why.DATABASE_AWAY)
    if found.source is Source.SEARCH and found.unranked is None:
        _keep(context, caller.tenant, digest, search.content_of(found), looked.now_ms)
    has_less = found.source is Source.NONE or found.why is Why.BUDGET
    return FoundPassages(cached.passages, Source.CACHED, found.why) if cached and has_less else found


def _keep(context: DoorContext, tenant: str, digest: str, content: str, since_ms: int) -> None:
    """Store what a whole search has found. A cache that cannot be written is no fault of the search."""
    with suppress(StoreUnavailable):
        if context.passage_cache.keep(tenant, digest, content, since_ms=since_ms):
            context.metrics.count_cached_passages(len(content.encode()))


class _Search:
    """One search. `cached` is what the cache has for the query, of some version of the collection."""

    def __init__(
        self,
        context: DoorContext,
        caller: Caller,
        wanted: Wanted,
        cached: CachedPassages | None,
        vectors: QueryVectors,
    ) -> None:
        self._context, self._caller, self._wanted, self._cached = context, caller, wanted, cached
        self._vectors = vectors
        #: The collection and its version that was searched.
        self._searched = "", 0

    def content_of(self, found: FoundPassages) -> str:
        """Return what the cache keeps of a whole search."""
        return CachedPassages(*self._searched, found.passages).dump()

    def run(self) -> FoundPassages:
        """Return the cached passages if they are of the present version, and otherwise those that are found.

        Raises RetrievalError.
        """
        wanted, tenant, database = self._wanted, self._caller.tenant, self._context.database
        assert database is not None  # noqa: S101 - for mypy: the caller has checked it
        # Before the collection is looked up, which a slow database takes the whole budget for, and the query's vector
        # is charged.
        database.check_searches(tenant)
        find = database.vector_store if wanted.store_at else database.collection
        collection, cached = find(tenant, wanted.collection, until=wanted.until_s), self._cached
        if cached is not None and (cached.collection_id, cached.version) == (collection.id, collection.version):
            return FoundPassages(cached.passages, Source.CACHE)
        vector, why = None, None
        if collection.model is not None:
            vector, why = self._vector(collection.model, collection.dimensions)
        k = wanted.k if wanted.reranker is None else max(wanted.k, CANDIDATES)
        query = Query(wanted.query, vector, k, wanted.filter, "words" if vector is None else "hybrid")
        found = database.search(tenant, collection.name, query, wanted.until_s)
        self._searched = collection.id, found.version
        omitted = found.omitted | ({"vector"} if why else set())
        why = why or (Why.BUDGET if omitted else None)
        if omitted >= {"vector", "words"}:
            return FoundPassages((), Source.NONE, why)
        source = Source.SEARCH if not omitted else Source.VECTOR if "words" in omitted else Source.WORDS
        return self._ranked(FoundPassages(found.passages, source, why))

    def _ranked(self, found: FoundPassages) -> FoundPassages:
        """Return the best passages, in the order of the reranker if it is done in time."""
        wanted, clock, model = self._wanted, self._context.clock, self._wanted.reranker
        if model is None:
            return found
        passages = reranked(
            *(self._context, self._caller, model, wanted.query, found.passages, wanted.until_s),
            private=wanted.private,
        )
        if passages is not None:
            return replace(found, passages=passages[: wanted.k])
        why = Why.BUDGET if clock.monotonic() >= wanted.until_s else Why.RERANKER_AWAY
        return replace(found, passages=found.passages[: wanted.k], unranked=Change("rerank", model, "none", why.value))

    def _vector(self, model: str, dimensions: int | None) -> tuple[Sequence[float] | None, Why | None]:
        """Return the vector of the query, or why it is missing when words at least have to be searched."""
        wanted, clock = self._wanted, self._context.clock
        until_s = vector_until(clock.monotonic(), wanted.until_s)
        vector = self._vectors.vector(model, wanted.query, until_s, private=wanted.private)
        # A model of this name that makes other vectors is another one than that of the collection.
        if vector is not None and len(vector) == dimensions:
            return vector, None
        last_s = self._vectors.last_s(model, wanted.query, private=wanted.private)
        ended_s = until_s if last_s is None else min(until_s, last_s)
        return None, Why.BUDGET if clock.monotonic() >= ended_s else Why.EMBEDDING_AWAY
