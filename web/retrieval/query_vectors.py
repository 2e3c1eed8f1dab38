"""The vectors of a request's queries: a text is embedded and charged once, whichever parts of the request need it."""

from collections.abc import Sequence

from web.jobs.callers import Caller
from web.retrieval.embedding import Vector, vectors_of
from web.retrieval.search_jobs import PendingResult, start_job
from web.runtime.context import DoorContext
from web.runtime.model_pools import Model

#: The part of the time left for a search after which the query's vector is no longer waited for: then words alone are
#: searched.
_FOR_VECTOR = 0.6
#: A query that seems too long for the model's context is cut to this share of it, because estimates vary.
_CUT_TO = 0.8


def vector_until(now_s: float, until_s: float) -> float:
    """Return until when a search that has to end at `until_s` waits for its query's vector, in seconds."""
    return now_s + _FOR_VECTOR * (until_s - now_s)


class QueryVectors:
    """The vectors that one request has asked for, by model and text."""

    def __init__(self, context: DoorContext, caller: Caller) -> None:
        self._context, self._caller = context, caller
        self._started: dict[tuple[str, str, bool], PendingResult[Vector]] = {}

    @property
    def has_any(self) -> bool:
        """Whether a vector was asked for."""
        return bool(self._started)

    def vector(
        self, model: str, text: str, until: float, *, last_s: float | None = None, private: bool = False
    ) -> Sequence[float] | None:
        """Return the vector of a query, or None if it is not made by `until`, in seconds of time.monotonic().

        The first call for a text starts a job of priority 0, which is canceled if it has not ended by `last_s`, by
        default `until`; further calls wait for the same job. A refusal, an error and a store that does not answer give
        None as well.
        """
        key = (model, text, private)
        if key not in self._started:
            last_s = until if last_s is None else max(until, last_s)
            self._started[key] = start_query(self._context, self._caller, model, text, last_s, private=private)
        return self._started[key].wait(until)

    def last_s(self, model: str, text: str, *, private: bool = False) -> float | None:
        """Return until when the job of a text runs, in seconds of time.monotonic(); None if there is no such job."""
        started = self._started.get((model, text, private))
        return None if started is None else started.last_s


def start_query(
    context: DoorContext, caller: Caller, model: str, text: str, last_s: float, *, private: bool = False
) -> PendingResult[Vector]:
    """Start the job that embeds a query until `last_s`, in seconds of time.monotonic()."""

    def payload() -> dict[str, object]:
        found = context.pools.resolve_target(model, caller.policy)
        return {"input": [_fitting(found, text) if isinstance(found, Model) else text]}

    return start_job(context, caller, model, payload, lambda view: vectors_of(view)[0], last_s, private=private)


def _fitting(model: Model, text: str) -> str:
    """Return the query or, if it seems too long for the model's context, its beginning."""
    if model.n_ctx is None or len(text) <= model.n_ctx:
        return text
    tokens = model.estimate({"input": [text]})
    if tokens <= model.n_ctx:
        return text
    return text[: max(1, int(len(text) * _CUT_TO * model.n_ctx / tokens))]
