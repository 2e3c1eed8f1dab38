"""Embeddings for collections: made by the pool of the embedding model, as ordinary charged jobs of the tenant."""

import math
import operator
import time
from collections.abc import Callable, Sequence

from shared.errors import StoreUnavailable
from shared.jobs.job import JobView
from shared.jobs.outcomes import Refusal
from shared.jobs.states import JobState
from web.api.deadline import RequestDeadline, max_deadline_ms
from web.api.job_json import has_ended
from web.api.refusals import Yield, store_unavailable_yield
from web.http.api_errors import ApiError, invalid_field
from web.jobs.callers import Caller
from web.jobs.cancel_on_disconnect import cancel_when_possible
from web.jobs.generation import GenerationRequest, vector_request
from web.jobs.spilling import offer
from web.jobs.tenant_jobs import erase_job, wait_until_ended
from web.openai.chat_answers import job_end_error
from web.openai.embeddings_schema import numbers_of
from web.runtime.context import DoorContext
from web.runtime.model_pools import Model

#: The most texts of one job in bulk, and about how many tokens they have together: so much work that the overhead of a
#: job is small, and so little that its slot is soon free for others.
PIECE_TEXTS, PIECE_TOKENS = 32, 8_192
#: The priority of jobs in bulk, which give way to all others in their pool.
_BULK = -1
#: The shortest deadline of a job in bulk, and the longest sleep between two looks whether to stop, in seconds.
_SHORTEST_S, _LOOK_S = 1.0, 0.2
#: The text with which an upstream's model is asked for its dimensions.
_PROBE = "penstock"

Vector = Sequence[float]
#: Returns the error with which to stop early, or None.
Stop = Callable[[], ApiError | None]


class InputTooLong(Exception):
    """One of the texts of a job has more tokens than the context of the embedding model."""


class EmbeddingRefused(Exception):
    """The embedding pool admitted no further job in time; `answer` says why, and when to come back."""

    def __init__(self, answer: Yield) -> None:
        super().__init__(str(answer.body.get("reason")))
        self.answer = answer


def embedding_model(context: DoorContext, caller: Caller, name: str) -> Model:
    """Return the embedding model that a collection names.

    Raises ApiError if the tenant may not use it, if it is a route, whose pools have different vectors, or if it makes
    no embeddings. Raises StoreUnavailable.
    """
    target = context.pools.resolve_target(name, caller.policy)
    if not isinstance(target, Model):
        raise invalid_field("model", f"model={name!r} is a route; name one model, whose vectors can be compared")
    if target.live and not target.forwards and target.purpose != "embed":
        raise invalid_field("model", f"model={target.name!r} makes no embeddings")
    return target


def dimensions_of(context: DoorContext, caller: Caller, model: Model, until: float) -> int:
    """Return the number of dimensions of a model's vectors, from its workers or, for an upstream, from a first vector.

    Raises as `BulkEmbedder.embed` does.
    """
    if model.dimensions is not None:
        return model.dimensions
    return len(BulkEmbedder(context, caller, model, until).embed([_PROBE])[0])


class EmbeddingLate(Exception):
    """No worker has computed the job for a while."""


class BulkEmbedder:
    """Embeds the texts of one load by jobs of priority -1, one after the other."""

    def __init__(
        self,
        context: DoorContext,
        caller: Caller,
        model: Model,
        until: float,
        stop: Stop = lambda: None,
        patience_s: float = math.inf,
    ) -> None:
        """`until` (seconds of time.monotonic()) is when to give up. `stop` returns the error with which to stop.

        `patience_s` is how long a job may be refused, or wait for a worker.
        """
        self._context, self._caller, self._model = context, caller, model
        self._until, self._stop, self._patience_s = until, stop, patience_s

    def embed_all(self, texts: Sequence[str], most: int) -> list[Vector]:
        """Return the vectors of any number of texts; one job embeds `most` of them.

        A text that is longer than the model's context has the mean of the vectors of its parts. Raises as `embed` does.
        """
        vectors: list[Vector] = []
        left = [list(texts[at : at + most]) for at in range(0, len(texts), most)][::-1]
        while left:
            piece = left.pop()
            try:
                vectors += self.embed(piece)
            except InputTooLong:
                middle = len(piece) // 2
                if middle:
                    left += (piece[middle:], piece[:middle])
                elif len(halves := _halves(piece[0])) > 1:
                    vectors.append(_mean(self.embed_all(halves, 1), [len(half) for half in halves]))
                else:
                    raise
        return vectors

    def embed(self, texts: Sequence[str]) -> list[Vector]:
        """Return the vectors of texts, which one job embeds.

        After a refusal, the job is offered again when the refusal's hint ends. Raises InputTooLong if one of the texts
        is longer than the model's context; EmbeddingRefused if the hint ends after `until`, if a retry is of no use, or
        if the model has no worker; EmbeddingLate if the patience has ended; ApiError if the job did not succeed by
        `until`, or if `stop` returns one. A job that has not ended is canceled.
        """
        view = self._ended(self._admitted(list(texts)))
        problem = job_end_error(view)
        vectors = [] if problem is not None else vectors_of(view)
        erase_job(self._context, view)
        if problem is None:
            return vectors
        if problem.code == "context_length_exceeded":
            raise InputTooLong(problem.message)
        raise problem

    def _admitted(self, texts: list[str]) -> JobView:
        until_s = min(self._until, time.monotonic() + self._patience_s)
        while True:
            self._check_stop()
            left_s = max(_SHORTEST_S, self._until - time.monotonic())
            deadline_ms = min(int(1000 * left_s), max_deadline_ms(self._context.settings, self._caller.policy))
            try:
                verdict = offer(self._context, self._caller, _request(self._model.name, texts, deadline_ms))
            except StoreUnavailable as error:
                verdict = store_unavailable_yield(error.fault)
            except ApiError as error:
                if error.code == "context_length_exceeded":
                    raise InputTooLong(error.message) from None
                raise
            if not isinstance(verdict, Yield):
                return verdict.view
            hint_ms, is_final = verdict.body["retry_hint_ms"], verdict.headers.get("x-should-retry") == "false"
            next_s = time.monotonic() + (hint_ms or 0) / 1000
            has_no_worker = verdict.body["reason"] == Refusal.NO_WORKER
            if hint_ms is None or is_final or has_no_worker or next_s > until_s:
                raise EmbeddingRefused(verdict)
            while (rest_s := next_s - time.monotonic()) > 0:
                self._check_stop()
                time.sleep(min(_LOOK_S, rest_s))

    def _ended(self, view: JobView) -> JobView:
        """Wait until the job has ended. Raises ApiError if it is too late or to stop, and EmbeddingLate.

        Then the job is canceled.
        """
        patient_until_s = time.monotonic() + self._patience_s
        try:
            while not has_ended(view):
                self._check_stop()
                self._check_time()
                if view.state is JobState.RUNNING:
                    patient_until_s = time.monotonic() + self._patience_s
                self._check_patience(patient_until_s)
                view = wait_until_ended(self._context, view, _LOOK_S)
        except (ApiError, EmbeddingLate):
            cancel_when_possible(self._context, view)
            raise
        return view

    def _check_time(self) -> None:
        if time.monotonic() > self._until:
            raise ApiError("deadline_exceeded", f"model {self._model.name!r} did not embed the document in time")

    def _check_patience(self, until_s: float) -> None:
        if time.monotonic() > until_s:
            raise EmbeddingLate(f"the workers of model {self._model.name!r} are busy")

    def _check_stop(self) -> None:
        problem = self._stop()
        if problem is not None:
            raise problem


def _request(model: str, texts: list[str], deadline_ms: int) -> GenerationRequest:
    request = vector_request({"input": texts}, model, RequestDeadline(deadline_ms, "default"))
    # No client polls the job.
    return request.replaced(priority=_BULK, poll_grace_ms=0)


def vectors_of(view: JobView) -> list[Vector]:
    """Return the vectors that a job has made."""
    return [numbers_of(text) for text in view.extra.get("embeddings", [])]


def _halves(text: str) -> list[str]:
    """Return the two halves of a text, divided at a space if possible, without a half that is empty."""
    middle = len(text) // 2
    space = text.rfind(" ", middle // 2, middle)
    middle = middle if space < 0 else space
    return [half for half in (text[:middle], text[middle:]) if half.strip()]


def _mean(vectors: Sequence[Vector], weights: Sequence[int]) -> Vector:
    """Return the direction of the mean of vectors, each counted by its direction and its weight."""
    lengths = [math.hypot(*vector) or 1.0 for vector in vectors]
    scales = [weight / length for weight, length in zip(weights, lengths, strict=True)]
    summed = [sum(map(operator.mul, scales, numbers)) for numbers in zip(*vectors, strict=True)]
    whole = math.hypot(*summed) or 1.0
    return [number / whole for number in summed]
