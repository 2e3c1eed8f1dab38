"""The retrieval step of a request: passages of a collection go into its prompt before the job is offered.

It runs at the door, outside of any slot, so that admission counts the tokens of the passages (ADR 96).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from shared.jobs.job_history import Change
from shared.retrieval.records import Passage
from shared.store.repeat_lookup import EarlierRequest
from web.api.citations import Citation, Retrieved
from web.api.deadline import RequestDeadline
from web.api.file_search import FileSearch, SearchedFiles, SearchStatus, SearchTexts, file_of, results_of
from web.api.own_words import place_of_words
from web.api.refusals import retry_headers
from web.api.retrieval_field import MAX_QUERY_CHARS, Retrieval
from web.http.api_errors import ApiError, invalid_field
from web.jobs.callers import Caller
from web.jobs.generation import GenerationRequest, WithFewerPassages
from web.retrieval.cached import normalized
from web.retrieval.finding import FoundPassages, Source, Wanted, Why, find_passages
from web.retrieval.prompting import question_of, with_passages
from web.retrieval.query_vectors import QueryVectors
from web.retrieval.reranking import check_reranker
from web.retrieval.stores import find_in_stores
from web.runtime.context import DoorContext
from web.runtime.model_pools import FoundRoute, Model

#: The step takes at most this part of the time until the request's deadlines.
DEADLINE_PART = 0.1
#: A prompt has passages only if its estimated tokens, times this factor, fit the context: estimates vary.
_ESTIMATES_VARY = 1.1
#: The passages leave this part of the context to an answer that may be shortened, or less if its length is less.
_ANSWER_PART = 0.25
#: When a client may ask again whose request requires passages that could not be found, in ms.
_RETRY_MS = 1_000


def retrieve(
    context: DoorContext,
    caller: Caller,
    generation: GenerationRequest,
    *,
    usual_ms: int | None = None,
    vectors: QueryVectors | None = None,
) -> GenerationRequest:
    """Return the request with the passages that it asks for in its prompt; one that asks for none as it is.

    A request that names no budget has `usual_ms`, by default PENSTOCK_RETRIEVAL_BUDGET_MS. `vectors` are those that the
    request has asked for before. Raises ApiError if it cannot be done, or if passages are required and could not be
    found; and StoreUnavailable. A repetition of a request that was admitted gets its job all the same.
    """
    wanted = generation.retrieval or generation.file_search
    if wanted is None:
        return generation
    if context.database is None:
        message = f"{wanted.field} is not supported: this door has no database of collections (PENSTOCK_DATABASE_URL)"
        raise ApiError("unsupported_parameter", message, param=wanted.field)
    try:
        usual_ms = context.settings.retrieval_budget_ms if usual_ms is None else usual_ms
        vectors = QueryVectors(context, caller) if vectors is None else vectors
        return _retrieve(context, caller, generation, wanted, usual_ms, vectors)
    except ApiError:
        earlier = EarlierRequest(generation.idem_digest or "", context.job_id(generation.job_id))
        if earlier.was_admitted(context.store.client, caller.tenant):
            return generation
        raise


def _retrieve(
    context: DoorContext,
    caller: Caller,
    generation: GenerationRequest,
    wanted: Retrieval | FileSearch,
    usual_ms: int,
    vectors: QueryVectors,
) -> GenerationRequest:
    target, began_s = context.pools.resolve_target(generation.model, caller.policy), context.clock.monotonic()
    until_s = began_s + budget_ms(wanted, generation.deadline, usual_ms) / 1000
    is_private = generation.private or (caller.policy is not None and caller.policy.private)
    query = query_of(wanted, generation.payload)
    if isinstance(wanted, FileSearch):
        found = find_in_stores(context, caller, wanted, query, until_s, vectors, private=is_private)
    else:
        if wanted.reranker is not None:
            check_reranker(context, caller, wanted.reranker, "retrieval.rerank.model")
        asked = Wanted(
            wanted.collection,
            query,
            wanted.k,
            wanted.parsed_filter,
            until_s,
            private=is_private,
            reranker=wanted.reranker,
        )
        found = find_passages(context, caller, asked, vectors)
    took_s = context.clock.monotonic() - began_s
    context.metrics.count_retrieval(found.source.value, found.why and found.why.value, len(found.passages), took_s)
    if wanted.required and found.source is Source.NONE:
        raise _not_found(found.why, wanted.field)
    return _Prompts(caller, generation, wanted, target, query, found, round(1000 * took_s)).request()


def budget_ms(wanted: Retrieval | FileSearch, deadline: RequestDeadline, usual_ms: float) -> float:
    """Return the time for the step in ms: its budget, but no more than a part of the time until the deadlines."""
    until_ms = deadline.deadline_ms
    if deadline.start_within_ms is not None:
        until_ms = min(until_ms, deadline.start_within_ms)
    return min(usual_ms if wanted.budget_ms is None else wanted.budget_ms, DEADLINE_PART * until_ms)


def query_of(wanted: Retrieval | FileSearch, payload: Mapping[str, Any]) -> str:
    """Return what to search for: of a long message the end, where a question usually is. Raises ApiError."""
    if wanted.query is not None:
        query = normalized(wanted.query)
    else:
        query = normalized(question_of(payload)[-MAX_QUERY_CHARS:])
    # Some characters have longer normal forms.
    query = query[-MAX_QUERY_CHARS:].lstrip()
    if not query and isinstance(wanted, FileSearch):
        raise invalid_field("input", f"input has no text of the user that {wanted.field} could search for")
    if not query:
        message = "retrieval.query is required: there is no text of the user to search for"
        raise invalid_field("retrieval.query", message if wanted.query is None else "retrieval.query has no text")
    return query


def _not_found(why: Why | None, field: str) -> ApiError:
    """Return the error for a request that requires passages."""
    headers = retry_headers(_RETRY_MS) | {"x-should-retry": "true"}
    if why is Why.BUDGET:
        message = "the passages that the request requires were not found within the budget of time"
        return ApiError("retrieval_timeout", message, param=field, headers=headers)
    message = f"the passages that the request requires cannot be found now ({why}); retry"
    return ApiError("retrieval_unavailable", message, param=field, headers=headers)


@dataclass(frozen=True)
class _Prompts:
    """Makes the prompt of a request with passages: as many as fit the context, and fewer as a second choice."""

    caller: Caller
    generation: GenerationRequest
    wanted: Retrieval | FileSearch
    target: Model | FoundRoute
    query: str
    found: FoundPassages
    took_ms: int

    def request(self) -> GenerationRequest:
        """Return the request. Raises ApiError if it requires passages and none fit the context."""
        passages = self.found.passages
        fitting = self._fitting(len(passages))
        changes = self.found.changes
        if fitting < len(passages):
            changes = (*changes, Change("passages", len(passages), fitting, "context"))
        required = self.wanted.required
        if required and passages and not fitting:
            message = "the passages that the request requires do not fit the model's context beside the rest of it"
            raise ApiError("context_length_exceeded", message, param=self.wanted.field)
        fewer = None
        if fitting > 1 or (fitting and not required):
            less = passages[: fitting // 2]
            fewer = WithFewerPassages(self._payload(less), self._form(less, changes, fitting), len(less))
        return self.generation.replaced(
            payload=self._payload(passages[:fitting]),
            form=self._form(passages[:fitting], changes, fitting),
            fewer=fewer,
        )

    def _payload(self, passages: Sequence[Passage]) -> dict[str, Any]:
        template = self.caller.policy.retrieval_template if self.caller.policy else None
        payload = self.generation.payload
        breaks_marks = "messages" not in payload or any(model.forwards for model in self.target.models)
        filled = with_passages(payload, passages, template, breaks_marks=breaks_marks)
        kept = place_of_words(payload, filled) if self.generation.keeps_request else {}
        return filled | kept | self._texts(passages)

    def _texts(self, passages: Sequence[Passage]) -> dict[str, Any]:
        """Return the field of the payload with the texts that a search for files shows."""
        if not isinstance(self.wanted, FileSearch):
            return {}
        results = results_of(passages) if self.wanted.shows_results else None
        return SearchTexts((self.query,), results).payload()

    def _form(self, passages: Sequence[Passage], changes: Sequence[Change], found: int) -> dict[str, Any]:
        cited = tuple(Citation(each.document_id, each.ordinal, each.score) for each in passages)
        form = self.generation.form | Retrieved(cited, tuple(changes), found, self.took_ms).form()
        if not isinstance(self.wanted, FileSearch):
            return form
        status: SearchStatus = "failed" if self.found.source is Source.NONE else "completed"
        files = tuple(map(file_of, passages))
        return form | SearchedFiles(files, status, self.wanted.shows_results, len(files)).form()

    def _fitting(self, most: int) -> int:
        """Return how many of the passages fit the context of a pool, trying all, half of them, and so on."""
        count = most
        while count and not any(self._fits(model, count) for model in self.target.models):
            count //= 2
        return count

    def _fits(self, model: Model, count: int) -> bool:
        if model.n_ctx is None:
            return True
        generation = self.generation
        answer = generation.default_max_tokens if generation.max_tokens is None else generation.max_tokens
        if generation.max_tokens is None or generation.shortens:
            answer = min(answer, int(_ANSWER_PART * model.n_ctx))
        tokens = model.estimate(self._payload(self.found.passages[:count]))
        return _ESTIMATES_VARY * tokens + answer <= model.n_ctx
