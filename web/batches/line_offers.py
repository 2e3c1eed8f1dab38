"""Offers the lines of a batch to the queue, each as a job of priority -1, and makes their answers."""

import base64
import hashlib
import json
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal, Self

from shared.cells.ids import DEFAULT_CELL, cell_of_id, id_in_cell
from shared.errors import StoreUnavailable
from shared.jobs.job import JobView
from shared.jobs.request import BatchLine
from shared.log import get_logger
from shared.store.batches.batches import ERROR, OUTPUT, ClaimedBatch, StoredBatch
from web.api.body import validated
from web.api.deadline import RequestDeadline, max_deadline_ms
from web.api.refusals import Yield
from web.batches.lines import RequestLine
from web.http.api_errors import OPENAI_STATUS, ApiError, error_response
from web.jobs.admission import LineNotOpen
from web.jobs.callers import Caller
from web.jobs.conversations import continued, with_referenced_items
from web.jobs.generation import GenerationRequest, embeddings_request, read_text_body, response_request, text_request
from web.jobs.spilling import offer
from web.openai.accepted_fields import unsupported
from web.openai.chat_answers import AnswerKind, answer_format, job_end_error
from web.openai.embeddings_schema import EmbeddingsBody, embeddings_json
from web.openai.responses_answers import response_json
from web.openai.responses_schema import ResponsesWithTools
from web.retrieval.step import retrieve
from web.runtime.context import DoorContext

#: For each endpoint, the kind of its answers.
ENDPOINTS: dict[str, AnswerKind | Literal["embeddings", "response"]] = {
    "/v1/chat/completions": "chat",
    "/v1/completions": "completion",
    "/v1/embeddings": "embeddings",
    "/v1/responses": "response",
}
#: How long a line waits after its job has expired, the first time and at most, in ms.
_FIRST_REST_MS, _LONGEST_REST_MS = 1_000, 60_000
#: How much of a model's name is kept with a line, in characters.
_MODEL_CHARS = 100
#: The messages of lines that were not run to their end, by code.
_NOT_RUN = {
    "batch_expired": "This request could not be executed before the completion window expired.",
    "batch_cancelled": "This request was not executed because the batch was cancelled.",
    "line_lost": "Another program has changed the record of this line in the store.",
    "input_file_lost": "This request could not be executed because the batch's input file is gone.",
}


@dataclass(frozen=True)
class OpenLine:
    """A line whose job is offered, queued or running."""

    number: int
    #: Where the line begins in the file.
    offset: int
    custom_id: str
    #: The job's id.
    job: str
    #: How many jobs of this line have ended without an answer, because they expired.
    attempt: int = 0
    #: After a refusal, the time (ms since the epoch) at which the job is offered again.
    at_ms: int = 0
    #: How embeddings are encoded in the answer.
    base64: bool = False
    #: The model that the line names, shortened. After a refusal, other lines for it are not offered in the same pass.
    model: str = ""

    def dump(self) -> str:
        """Return the line as JSON."""
        return json.dumps(asdict(self), separators=(",", ":"))

    @classmethod
    def load(cls, text: str) -> Self | None:
        """Return the line in a text that `dump` returned, or None if another program has spoiled it."""
        try:
            return cls(**json.loads(text))
        except (ValueError, TypeError):
            return None

    def of(self, request: RequestLine) -> Self:
        """Return the line with the fields that its request gives."""
        return replace(self, custom_id=request.custom_id, model=str(request.body.get("model"))[:_MODEL_CHARS])

    def again(self, batch_id: str, now_ms: int) -> Self:
        """Return the line with the id of another job, which is offered after a second, and later each time."""
        rest_ms = min(_FIRST_REST_MS << min(self.attempt, 16), _LONGEST_REST_MS)
        job = job_id(batch_id, self.number, self.attempt + 1, cell_of_id(self.job))
        return replace(self, job=job, attempt=self.attempt + 1, at_ms=now_ms + rest_ms)


def job_id(batch_id: str, number: int, attempt: int, cell: str = DEFAULT_CELL) -> str:
    """Return the id of a line's job in a cell. A process that repeats what a killed one did offers the same job."""
    digest = hashlib.sha256(f"batch line|{batch_id}|{number}|{attempt}".encode()).digest()
    return id_in_cell(cell, base64.urlsafe_b64encode(digest[:16]).decode().rstrip("="))


def answer_line(batch_id: str, line: OpenLine, endpoint: str, view: JobView) -> str:
    """Return the stored answer of a line whose job has ended."""
    problem = job_end_error(view)
    if problem is not None:
        return problem_line(batch_id, line, problem, view.id)
    kind = ENDPOINTS[endpoint]
    if kind == "embeddings":
        body = embeddings_json(view, "base64" if line.base64 else "float")
    elif kind == "response":
        body = response_json(view)
    else:
        body = answer_format(view, kind).complete(view)
    return OUTPUT + _file_line(batch_id, line, response=_response(200, view.id, body))


def problem_line(batch_id: str, line: OpenLine, problem: ApiError, request_id: str) -> str:
    """Return the stored answer of a line that was answered with an error."""
    body = error_response(problem).body
    error = {"code": problem.code, "message": problem.message}
    status = OPENAI_STATUS.get(problem.code, problem.status)
    return ERROR + _file_line(batch_id, line, response=_response(status, request_id, body), error=error)


def refusal_line(batch_id: str, line: OpenLine, status: int, body: dict[str, Any]) -> str:
    """Return the stored answer of a line that can never be admitted."""
    error = {"code": body["error"]["code"], "message": body["error"]["message"]}
    return ERROR + _file_line(batch_id, line, response=_response(status, line.job, body), error=error)


def unrun_line(batch_id: str, line: OpenLine, code: str, message: str = "") -> str:
    """Return the stored answer of a line that was not run to its end; `code` says why."""
    return ERROR + _file_line(batch_id, line, error={"code": code, "message": message or _NOT_RUN[code]})


def _response(status: int, request_id: str, body: dict[str, Any]) -> dict[str, Any]:
    return {"status_code": status, "request_id": request_id, "body": body}


def _file_line(
    batch_id: str, line: OpenLine, *, response: dict[str, Any] | None = None, error: dict[str, Any] | None = None
) -> str:
    name = hashlib.sha256(f"{batch_id}|{line.number}".encode()).hexdigest()[:24]
    value = {"id": f"batch_req_{name}", "custom_id": line.custom_id, "response": response, "error": error}
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


log = get_logger()

#: How long a line waits after an error that is not its own, and at least after a refusal of its own deadline, in ms.
_FAULT_REST_MS, _OWN_REST_MS = 1_000, 1_000
#: The shortest deadline of a line's job, in ms.
_SHORTEST_MS = 1_000
_PRIORITY = -1
#: How long the search for a line's passages takes at most if the line names no budget, in ms. Nobody waits for a line.
_RETRIEVAL_MS = 1_000


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

    @property
    def is_admitted(self) -> bool:
        """Whether the line has a job now."""
        return self.answer is None and self.rest_ms is None and not self.is_stale


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
        # The next pass, of this process or another one, finds what has changed.
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
        generation = retrieve(context, caller, generation, usual_ms=_RETRIEVAL_MS)
    # The job has no client that polls it.
    return replace(generation, priority=_PRIORITY, poll_grace_ms=0)


def _response_request(context: DoorContext, caller: Caller, value: dict[str, Any], left_ms: int) -> GenerationRequest:
    """Return the request for a response, which is in the batch's file only. Raises ApiError."""
    with ExitStack() as held:
        body = validated(ResponsesWithTools, with_referenced_items(context, caller.tenant, value, held))
        if body.background:
            raise unsupported("background", "a line of a batch has no connection that it could outlive")
        body = body if context.database is not None else body.without_file_search()
        deadline = _deadline(context, caller, body.deadline_ms, body.start_within_ms, left_ms)
        generation = continued(context, caller.tenant, response_request(context, body, deadline), held)
        generation = retrieve(context, caller, replace(generation, keeps_request=False), usual_ms=_RETRIEVAL_MS)
    form = generation.form | {"store": False}
    return replace(generation, priority=_PRIORITY, poll_grace_ms=0, form=form)


def _deadline(
    context: DoorContext, caller: Caller, named_ms: int | None, start_within_ms: int | None, left_ms: int
) -> RequestDeadline:
    """Return the deadline of a line's job, which counts as one that nobody named: the line is offered again."""
    longest = max_deadline_ms(context.settings, caller.policy)
    deadline_ms = max(_SHORTEST_MS, min(longest if named_ms is None else named_ms, longest, left_ms))
    return RequestDeadline(deadline_ms, "default", start_within_ms, "default")
