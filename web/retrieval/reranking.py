"""Orders the passages of a search by a reranker, a model that reads the query together with each passage."""

from collections.abc import Sequence
from dataclasses import replace

from shared.errors import StoreUnavailable
from shared.jobs.job import JobView
from shared.retrieval.records import Passage
from web.http.api_errors import invalid_field
from web.jobs.callers import Caller
from web.retrieval.search_jobs import result_within
from web.runtime.context import DoorContext
from web.runtime.model_pools import Model

#: How many passages a reranker reads, or as many as are wanted if these are more. Its time and its cost grow with them.
CANDIDATES = 30


def check_reranker(context: DoorContext, caller: Caller, name: str, param: str = "rerank.model") -> None:
    """Raise ApiError if the tenant may not use the model, or if it is known to make no scores, as before upstreams.

    `param` is the field that names the model.
    """
    try:
        target = context.pools.resolve_target(name, caller.policy)
    except StoreUnavailable:
        return
    if isinstance(target, Model) and target.live and (target.forwards or target.purpose != "rank"):
        raise invalid_field(param, f"{param}={target.name!r} does not rank documents")


def reranked(
    context: DoorContext,
    caller: Caller,
    model: str,
    query: str,
    passages: Sequence[Passage],
    until: float,
    *,
    private: bool = False,
) -> tuple[Passage, ...] | None:
    """Return the passages in the order of the model's scores, with these scores, the best first.

    One charged job scores all of them. None if it does not succeed by `until`, in seconds of time.monotonic().
    """
    if not passages:
        return ()

    def payload() -> dict[str, object]:
        return {"query": query, "input": [passage.text for passage in passages], "truncate": True}

    scores = result_within(context, caller, model, payload, _scores, until, private=private)
    if scores is None or len(scores) != len(passages):
        return None
    scored = [replace(passage, score=score) for passage, score in zip(passages, scores, strict=True)]
    # sorted() keeps the order of equal scores.
    return tuple(sorted(scored, key=lambda passage: -passage.score))


def _scores(view: JobView) -> list[float]:
    return [min(1.0, max(0.0, float(score))) for score in view.extra.get("scores", [])]
