"""The lines of a batch that are in the queue or run, and the ids of their jobs; pure functions."""

import base64
import hashlib
import json
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal, Self

from shared.jobs.job import JobView
from shared.jobs.outcomes import EndCode
from shared.store.batches.batches import ERROR, OUTPUT
from web.batches.lines import RequestLine
from web.http.api_errors import OPENAI_STATUS, ApiError, error_response
from web.openai.chat_answers import AnswerKind, answer_format, job_end_error
from web.openai.embeddings_schema import embeddings_json
from web.openai.responses_answers import response_json

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
    #: The model that the line names, shortened. After a refusal, other lines for it are not offered in the same turn.
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
        job = job_id(batch_id, self.number, self.attempt + 1)
        return replace(self, job=job, attempt=self.attempt + 1, at_ms=now_ms + rest_ms)


def job_id(batch_id: str, number: int, attempt: int) -> str:
    """Return the id of a line's job. A process that repeats what a killed one has done offers the same job."""
    digest = hashlib.sha256(f"batch line|{batch_id}|{number}|{attempt}".encode()).digest()
    return base64.urlsafe_b64encode(digest[:16]).decode().rstrip("=")


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


def has_result(view: JobView) -> bool:
    """Return whether the result of a job that succeeded is still there."""
    return view.text is not None or "embeddings" in view.extra


def was_canceled_by_client(view: JobView) -> bool:
    """Return whether a client or an operator canceled the job, and not a door that got no answer to its offer."""
    return view.code in {EndCode.CANCELED, EndCode.SUPERSEDED}


def _response(status: int, request_id: str, body: dict[str, Any]) -> dict[str, Any]:
    return {"status_code": status, "request_id": request_id, "body": body}


def _file_line(
    batch_id: str, line: OpenLine, *, response: dict[str, Any] | None = None, error: dict[str, Any] | None = None
) -> str:
    name = hashlib.sha256(f"{batch_id}|{line.number}".encode()).hexdigest()[:24]
    value = {"id": f"batch_req_{name}", "custom_id": line.custom_id, "response": response, "error": error}
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
