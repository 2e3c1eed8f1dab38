"""The look-up of a request in its tenant's semantic cache, before the job is offered (ADR 97)."""

import time
from dataclasses import dataclass
from enum import StrEnum

from shared.errors import StoreUnavailable
from shared.jobs.job import JobView
from shared.log import get_logger
from shared.retrieval.errors import RetrievalError
from shared.retrieval.filters import filter_json
from shared.retrieval.records import Collection
from shared.store.answer_cache import LISTED
from web.api.retrieval_field import Retrieval
from web.http.api_errors import ApiError
from web.jobs.callers import Caller
from web.jobs.generation import GenerationRequest
from web.retrieval.cached import normalized
from web.retrieval.query_vectors import QueryVectors, vector_until
from web.retrieval.step import DEADLINE_PART, budget_ms, query_of
from web.runtime.answer_vectors import MAX_DIMENSIONS, packed
from web.runtime.context import DoorContext
from web.runtime.model_pools import FoundRoute
from web.semantic_cache.guard import difference
from web.semantic_cache.kept import Facts, KeptAnswer, answer_of, load, view_of
from web.semantic_cache.scope import MAX_COMPARED, divided, entry_digest, is_greedy, scope_of

log = get_logger()

#: The part of the budget after which a request that also needs passages stops looking for an answer.
_WITH_PASSAGES = 0.5
#: The most earlier prompts that are read and compared by the guard.
_MOST_COMPARED = 4


class Result(StrEnum):
    """The result of a look-up; the word is a label of the metric."""

    HIT = "hit"
    MISS = "miss"
    #: There are prompts that are similar enough, and the guard refused them all.
    GUARDED = "guarded"
    #: The prompt has no vector, because the embedding model did not make it in time. Its answer is kept without one.
    AWAY = "away"


@dataclass(frozen=True)
class Wishes:
    """The wishes that a request's headers have for the cache."""

    reads: bool = True
    writes: bool = True
    #: Whether an earlier answer may be used although the request's sampling is random.
    allows_random: bool = False


def wishes_of(cache_control: str, semantic_cache: str) -> Wishes:
    """Return what the headers Cache-Control and X-Semantic-Cache ask for. Raises ApiError for an unknown value."""
    directives = {part.partition("=")[0].strip().lower() for part in cache_control.split(",")}
    wanted = semantic_cache.strip().lower()
    if wanted not in {"", "allow", "off"}:
        message = f"X-Semantic-Cache={semantic_cache[:60]!r} is neither allow nor off"
        raise ApiError("invalid_value", message, param="X-Semantic-Cache")
    if wanted == "off":
        return Wishes(reads=False, writes=False)
    return Wishes("no-cache" not in directives, "no-store" not in directives, wanted == "allow")


class LookUp:
    """One look-up. `hit` is the view of a job that was never offered, with an earlier answer, or None."""

    def __init__(
        self,
        context: DoorContext,
        caller: Caller,
        generation: GenerationRequest,
        asked: "_Asked",
        vectors: QueryVectors,
    ) -> None:
        self._context, self._caller, self._generation, self._asked = context, caller, generation, asked
        self._vectors = vectors
        self._digest = entry_digest(asked.scope, asked.text, is_continued=asked.same_only)
        #: The vector of the prompt; empty if only the same prompt gets the answer. None before it was looked for.
        self._vector: bytes | None = None
        self.hit: JobView | None = None

    def run(self, until_s: float, *, reads: bool) -> Result:
        """Look for an answer until a time, in seconds of time.monotonic(). Raises StoreUnavailable."""
        asked, tenant = self._asked, self._caller.tenant
        if reads and self._use(self._digest, 1.0):
            return Result.HIT
        if asked.same_only or len(asked.text) > MAX_COMPARED:
            self._vector = b""
            return Result.MISS
        if reads:
            self._read_vectors(until_s)
        made = self._vectors.vector(
            asked.embedding_model,
            normalized(asked.text),
            until_s,
            last_s=asked.vector_last_s,
            private=asked.private,
        )
        if made is None or len(made) > MAX_DIMENSIONS:
            self._vector = b""
            return Result.AWAY
        self._vector = packed(made)
        if not reads:
            return Result.MISS
        least = self._context.settings.semantic_cache_similarity
        found = self._context.answer_vectors.nearest(tenant, asked.scope, self._vector, least, _MOST_COMPARED)
        for near in found:
            if self._use(near.digest, near.similarity):
                return Result.HIT
        return Result.GUARDED if found else Result.MISS

    def keep(self, view: JobView) -> None:
        """Store the answer of the job that was admitted instead. An answer that cannot be stored is no fault of it."""
        vector = self._vector
        if vector is None:
            return
        try:
            answer = answer_of(self._asked.text, view, self._generation)
            if answer is None:
                return
            content, cache = answer.dump(), self._context.answer_cache
            if cache.keep(self._caller.tenant, self._digest, content, self._asked.scope, vector):
                self._context.metrics.count_cached_answer(len(content.encode("utf-8", "surrogatepass")))
        except (StoreUnavailable, ValueError) as error:
            log.info("semantic_cache.not_kept", tenant=self._caller.tenant, error=str(error)[:200])

    def _read_vectors(self, until_s: float) -> None:
        """Read the vectors that the store has and this process does not know."""
        vectors, tenant = self._context.answer_vectors, self._caller.tenant
        most = self._context.settings.semantic_cache_entries
        for _ in range(-(-most // LISTED) + 1):
            after_us = vectors.last_us(tenant)
            found = self._context.answer_cache.vectors_after(tenant, after_us)
            vectors.add_listed(tenant, after_us, found)
            if len(found) < LISTED or time.monotonic() >= until_s:
                return

    def _use(self, digest: str, similarity: float) -> bool:
        """Use a stored answer if the guard finds that its prompt asks the same."""
        tenant = self._caller.tenant
        stored = self._context.answer_cache.read(tenant, digest)
        kept = None if stored is None else load(stored.content)
        if stored is None or kept is None:
            self._context.answer_vectors.forget(tenant, digest)
            return False
        if digest != self._digest and difference(self._asked.text, kept.prompt) is not None:
            return False
        self.hit = self._view(kept, similarity, stored.age_ms // 1000)
        return True

    def _view(self, kept: KeptAnswer, similarity: float, age_s: int) -> JobView:
        facts = Facts(similarity, age_s, now_ms=int(1000 * time.time()))
        view = view_of(kept, self._caller.tenant, self._generation, facts)
        log.info(
            "semantic_cache.answered",
            tenant=self._caller.tenant,
            key_label=self._caller.key_label,
            model=kept.model,
            job=view.id,
            similarity=round(similarity, 3),
            age_s=age_s,
        )
        return view


def look_up(
    context: DoorContext,
    caller: Caller,
    generation: GenerationRequest,
    wishes: Wishes,
    vectors: QueryVectors,
    seed: int | None,
) -> LookUp | None:
    """Look for an earlier answer to a request; return None if the cache is not for this request.

    `seed` is what the client named; `vectors` are those of the request, whose retrieval step may need the same one. The
    whole look-up takes no longer than the budget of the retrieval step, and half of it if the request has such a step.
    """
    policy, began_s = caller.policy, context.clock.monotonic()
    if policy is None or not policy.semantic_cache or not (wishes.reads or wishes.writes):
        return None
    if not context.settings.embedding_model or not (is_greedy(generation.payload) or wishes.allows_random):
        return None
    share = 1.0 if generation.retrieval is None else _WITH_PASSAGES
    time_ms = share * min(context.settings.retrieval_budget_ms, DEADLINE_PART * generation.deadline.deadline_ms)
    until_s = time.monotonic() + time_ms / 1000
    try:
        asked = _asked(context, caller, generation, seed, until_s)
        if asked is None:
            return None
        found = LookUp(context, caller, generation, asked, vectors)
        result = found.run(until_s, reads=wishes.reads)
    except (ApiError, StoreUnavailable, RetrievalError) as error:
        # The request goes its usual way, which has its own words for what is wrong.
        log.info("semantic_cache.no_look_up", tenant=caller.tenant, error=str(error)[:200])
        return None
    if wishes.reads:
        context.metrics.count_semantic_look_up(result.value, context.clock.monotonic() - began_s)
    return found if found.hit or wishes.writes else None


@dataclass(frozen=True)
class _Asked:
    """The prompt of a request, and the scope in which it is compared."""

    text: str
    scope: bytes
    embedding_model: str
    private: bool
    #: Whether only the same prompt gets the answer.
    same_only: bool
    #: Until when the retrieval step waits for the same vector, in seconds of time.monotonic(); None if it needs none.
    vector_last_s: float | None


def _asked(
    context: DoorContext, caller: Caller, generation: GenerationRequest, seed: int | None, until_s: float
) -> _Asked | None:
    """Return what to look for; None if the answer must not come from a cache.

    Raises ApiError, StoreUnavailable and RetrievalError.
    """
    prompt, policy = divided(generation.payload), caller.policy
    private = generation.private or (policy is not None and policy.private)
    # Only the key that made a private request gets its answer again; without keys, nobody does.
    if prompt is None or generation.escalate or generation.supersede_key or (private and not caller.key_id):
        return None
    target, model = context.pools.resolve_target(generation.model, policy), context.settings.embedding_model
    route = target.text if isinstance(target, FoundRoute) else ""
    owner = caller.key_id if private else ""
    lengths = [generation.max_tokens, generation.default_max_tokens]
    collection = _collection_of(context, caller, generation, until_s)
    passages = _passages(caller, generation.retrieval, collection)
    scope = scope_of(prompt.rest, target.name, route, lengths, owner, model, passages, seed)
    last_s = _last_s(context, generation, collection, normalized(prompt.text), until_s)
    return _Asked(prompt.text, scope, model, private, prompt.is_continued, last_s)


def _collection_of(
    context: DoorContext, caller: Caller, generation: GenerationRequest, until_s: float
) -> Collection | None:
    """Return the collection of the request's retrieval step; None without one."""
    wanted, database = generation.retrieval, context.database
    if wanted is None or database is None:
        return None
    database.check_searches(caller.tenant)
    return database.collection(caller.tenant, wanted.collection, until=until_s)


def _passages(caller: Caller, wanted: Retrieval | None, collection: Collection | None) -> tuple[object, ...]:
    """Return all that the passages of a request depend on, with the version of their collection."""
    if wanted is None or collection is None:
        return ()
    template = caller.policy.retrieval_template if caller.policy else None
    found_by = [wanted.k, wanted.query, filter_json(wanted.parsed_filter), wanted.reranker]
    return (collection.id, collection.version, *found_by, template)


def _last_s(
    context: DoorContext, generation: GenerationRequest, collection: Collection | None, text: str, until_s: float
) -> float | None:
    """Return until when the retrieval step waits for the vector of `text`; None if it needs another one, or none.

    The step begins at `until_s`, in seconds of time.monotonic(), if the look-up takes all of its time.
    """
    wanted, settings = generation.retrieval, context.settings
    if wanted is None or collection is None or collection.model != settings.embedding_model:
        return None
    if query_of(wanted, generation.payload) != text:
        return None
    left_ms = budget_ms(wanted, generation.deadline, (1 - _WITH_PASSAGES) * settings.retrieval_budget_ms)
    return vector_until(until_s, until_s + left_ms / 1000)
