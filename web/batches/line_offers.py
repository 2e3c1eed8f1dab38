"""Offers the lines of a batch to the queue, each as a job of priority -1."""

from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any

from shared.errors import StoreUnavailable
from shared.jobs.request import BatchLine
from shared.log import get_logger
from shared.store.batches.batches import ClaimedBatch, StoredBatch
from web.api.body import validated
from web.api.deadline import RequestDeadline, max_deadline_ms
from web.api.refusals import Yield
from web.batches.open_lines import ENDPOINTS, OpenLine, problem_line, refusal_line
from web.http.api_errors import ApiError
from web.jobs.admission import LineNotOpen, offer
from web.jobs.callers import Caller
from web.jobs.conversations import continued
from web.jobs.generation import GenerationRequest
from web.jobs.item_references import with_referenced_items
from web.jobs.openai_requests import embeddings_request, read_text_body, response_request, text_request
from web.openai.accepted_fields import unsupported
from web.openai.embeddings_schema import EmbeddingsBody
from web.openai.responses_schema import ResponsesBody
from web.runtime.context import DoorContext

log = get_logger()

#: How long a line waits after an error that is not its own, and at least after a refusal of its own deadline, in ms.
_FAULT_REST_MS, _OWN_REST_MS = 1_000, 1_000
#: The shortest deadline of a line's job, in ms.
_SHORTEST_MS = 1_000
_PRIORITY = -1


@dataclass(frozen=True)
class Offered:
    """The outcome of an offer: the line as it is to be stored, or its answer if it has failed."""

    line: OpenLine
    answer: str | None = None
    #: How long to wait before the next offer for this line's model, if this one was refused, in ms.
    rest_ms: int | None = None
    #: Whether it was refused because of the line's own deadline, so that other lines may be admitted.
    is_own: bool = False
    #: Whether this process may not offer lines of the batch any more, or the line needs no job any more.
    is_stale: bool = False


def offer_line(
    context: DoorContext, caller: Caller, claimed: ClaimedBatch, line: OpenLine, body: dict[str, Any]
) -> Offered:
    """Offer a line's job, which is stored as open. Raises StoreUnavailable."""
    batch, now_ms = claimed.batch, claimed.now_ms
    left_ms = batch.number("expires_ms") - now_ms
    try:
        generation = _request(context, caller, batch.fields.get("endpoint", ""), body, left_ms)
        held = BatchLine(batch.id, claimed.token, line.number)
        verdict = offer(context, caller, replace(generation, job_id=line.job, line=held, return_ticket=""))
    except StoreUnavailable:
        raise
    except LineNotOpen:
        # The next turn, of this process or another one, finds what has changed.
        return Offered(line, is_stale=True)
    except ApiError as error:
        if error.status in {408, 429} or error.status >= 500 or _may_come_back(context, batch, error):
            return _later(line, now_ms, _FAULT_REST_MS)
        return Offered(line, problem_line(batch.id, line, error, line.job))
    except Exception:
        # One line that cannot be offered must not stop the others of its batch.
        log.exception("batch.line_fault", batch=batch.id, line=line.number)
        fault = ApiError("internal_error", "the door failed to handle this line; its log contains the reason")
        return Offered(line, problem_line(batch.id, line, fault, line.job))
    if isinstance(verdict, Yield):
        return _refused(batch, line, verdict, now_ms, is_cut=generation.deadline.deadline_ms >= left_ms)
    return Offered(replace(line, job=verdict.view.id, at_ms=0, base64=body.get("encoding_format") == "base64"))


def _may_come_back(context: DoorContext, batch: StoredBatch, error: ApiError) -> bool:
    """Return whether a model is only away: none is live, or lines of the batch have been answered before."""
    return error.code == "model_not_found" and (batch.number("completed") > 0 or not context.pools.directory().live)


def _refused(batch: StoredBatch, line: OpenLine, refusal: Yield, now_ms: int, *, is_cut: bool) -> Offered:
    """Return the outcome for a refused line. `is_cut` says that the window's end is its deadline."""
    hint_ms, is_own = refusal.body["retry_hint_ms"], refusal.body["reason"] == "deadline_unmeetable"
    if hint_ms is not None and is_own:
        return replace(_later(line, now_ms, max(hint_ms, _OWN_REST_MS)), is_own=True)
    if hint_ms is not None:
        return _later(line, now_ms, hint_ms)
    if is_cut and is_own:
        # The time that is left is too short, not the line's own deadline, so the line expires with the batch.
        return _later(line, now_ms, _FAULT_REST_MS)
    return Offered(line, refusal_line(batch.id, line, refusal.status, refusal.body))


def _later(line: OpenLine, now_ms: int, rest_ms: int) -> Offered:
    return Offered(replace(line, at_ms=now_ms + rest_ms), rest_ms=rest_ms)


def _request(
    context: DoorContext, caller: Caller, endpoint: str, value: dict[str, Any], left_ms: int
) -> GenerationRequest:
    """Return the request in a line. Raises ApiError."""
    kind = ENDPOINTS[endpoint]
    if kind == "response":
        return _response_request(context, caller, value, left_ms)
    if kind == "embeddings":
        vectors = validated(EmbeddingsBody, value)
        deadline = _deadline(context, caller, vectors.deadline_ms, vectors.start_within_ms, left_ms)
        generation = embeddings_request(context, vectors, caller.policy, deadline)
        generation = replace(generation, private=vectors.private)
    else:
        text = read_text_body(context, value, kind, caller.policy)
        deadline = _deadline(context, caller, text.deadline_ms, text.start_within_ms, left_ms)
        generation = text_request(context, text, kind, deadline)
    # The job has no client that polls it.
    return replace(generation, priority=_PRIORITY, poll_grace_ms=0)


def _response_request(context: DoorContext, caller: Caller, value: dict[str, Any], left_ms: int) -> GenerationRequest:
    """Return the request for a response, which is in the batch's file only. Raises ApiError."""
    with ExitStack() as held:
        body = validated(ResponsesBody, with_referenced_items(context, caller.tenant, value, held))
        if body.background:
            raise unsupported("background", "a line of a batch has no connection that it could outlive")
        deadline = _deadline(context, caller, body.deadline_ms, body.start_within_ms, left_ms)
        generation = continued(context, caller.tenant, response_request(context, body, deadline), held)
    form = generation.form | {"store": False}
    return replace(generation, priority=_PRIORITY, poll_grace_ms=0, form=form, keeps_request=False)


def _deadline(
    context: DoorContext, caller: Caller, named_ms: int | None, start_within_ms: int | None, left_ms: int
) -> RequestDeadline:
    """Return the deadline of a line's job, which counts as one that nobody named: the line is offered again."""
    longest = max_deadline_ms(context.settings, caller.policy)
    deadline_ms = max(_SHORTEST_MS, min(longest if named_ms is None else named_ms, longest, left_ms))
    return RequestDeadline(deadline_ms, "default", start_within_ms, "default")
