"""Finds the passages for a query in vector stores, one after the other within one budget, and joins them."""

from collections.abc import Sequence

from shared.jobs.job_history import Change
from shared.retrieval.records import Passage
from web.api.file_search import FileSearch
from web.jobs.callers import Caller
from web.retrieval.finding import FoundPassages, Source, Wanted, find_passages
from web.retrieval.query_vectors import QueryVectors, vector_until
from web.runtime.context import DoorContext

#: The constant of reciprocal rank fusion, as in shared/retrieval/fusion.py.
_SMOOTHING = 60


def find_in_stores(
    context: DoorContext,
    caller: Caller,
    search: FileSearch,
    query: str,
    until_s: float,
    vectors: QueryVectors,
    *,
    private: bool,
) -> FoundPassages:
    """Return the passages of all stores for a query, by `until_s` of the clock.

    Each store has its share of the time that is left, and the first one also the time for the query's vector, which the
    others use again. Raises ApiError if the tenant lacks one of the stores, and StoreUnavailable.
    """
    found: list[FoundPassages] = []
    for number, store_id in enumerate(search.stores):
        now_s = context.clock.monotonic()
        from_s = now_s if vectors.has_any else vector_until(now_s, until_s)
        end_s = from_s + (until_s - from_s) / (len(search.stores) - number)
        place = f"{search.field}.vector_store_ids[{number}]"
        wanted = Wanted(store_id, query, search.k, search.parsed_filter, end_s, private, store_at=place)
        found.append(find_passages(context, caller, wanted, vectors))
    lists = [[each for each in one.passages if each.score >= search.threshold] for one in found]
    passages = joined(lists, search.k)
    if len(found) == 1:
        return FoundPassages(passages, found[0].source, found[0].why)
    return _all(found, search.stores, passages)


def joined(lists: Sequence[Sequence[Passage]], k: int) -> tuple[Passage, ...]:
    """Return the `k` best passages of several stores by their ranks; scores of different stores are not comparable.

    A passage of a file that is in several stores is there once. Documents that were loaded by ids of the tenant's
    choice can have the same id in several stores and different texts.
    """
    best: dict[tuple[str, str], Passage] = {}
    ranks: dict[tuple[str, str], float] = {}
    for passages in lists:
        for rank, passage in enumerate(passages, 1):
            key = (passage.document_id, passage.text)
            ranks[key] = ranks.get(key, 0.0) + 1 / (_SMOOTHING + rank)
            if key not in best or passage.score > best[key].score:
                best[key] = passage
    order = sorted(best, key=lambda key: (-ranks[key], -best[key].score))
    return tuple(best[key] for key in order[:k])


def _all(found: Sequence[FoundPassages], stores: Sequence[str], passages: tuple[Passage, ...]) -> FoundPassages:
    """Return the result for several stores. Each change names its store."""
    changes = tuple(
        Change(f"retrieval of {store_id}", change.before, change.after, change.why)
        for one, store_id in zip(found, stores, strict=True)
        for change in one.changes
    )
    # The first of these that a store has is counted for all.
    order = (Source.WORDS, Source.VECTOR, Source.CACHED, Source.SEARCH, Source.CACHE, Source.NONE)
    sources = {one.source for one in found}
    source = next(each for each in order if each in sources)
    why = next((one.why for one in found if one.why is not None), None)
    return FoundPassages(passages, source, why, changes)
