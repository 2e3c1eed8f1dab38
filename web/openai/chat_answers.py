"""Jobs → OpenAI's response objects and chunks; ends that are errors here; pure."""

from dataclasses import dataclass
from typing import Any, Literal

from shared.jobs.job import JobView
from shared.jobs.outcomes import EndCode
from shared.jobs.states import JobState
from web.api.job_json import degraded_json, error_json, queue_facts
from web.api.logprobs import chat_logprobs, completion_logprobs
from web.http.api_errors import ApiError

AnswerKind = Literal["chat", "completion"]


@dataclass(frozen=True)
class AnswerFormat:
    """What differs between the two routes."""

    kind: AnswerKind
    job_id: str
    model: str
    created: int

    @property
    def id(self) -> str:
        """OpenAI's prefix and the job's id, so that logs on both sides can be joined."""
        return ("chatcmpl-" if self.kind == "chat" else "cmpl-") + self.job_id

    def whole(self, view: JobView) -> dict[str, Any]:
        """The answer of a plain call."""
        text = view.text or ""
        reason = view.finish_reason or "stop"
        choice: dict[str, Any] = {"index": 0, "logprobs": self._logprobs(view), "finish_reason": reason}
        if self.kind == "chat":
            choice["message"] = {"role": "assistant", "content": text, "refusal": None}
        else:
            choice["text"] = text
        kind = "chat.completion" if self.kind == "chat" else "text_completion"
        told = {"choices": [choice], "usage": usage(view), "queue": queue_facts(view)}
        return self._envelope(kind) | told | degraded_json(view)

    def first(self) -> dict[str, Any] | None:
        """The chunk that names the role; completions have none."""
        return self._chunk({"role": "assistant", "content": ""}) if self.kind == "chat" else None

    def text(self, text: str) -> dict[str, Any]:
        """A chunk with new text."""
        return self._chunk({"content": text}) if self.kind == "chat" else self._chunk(text)

    def last(self, view: JobView) -> dict[str, Any]:
        """The chunk that says why the text ends and what was cut; with the logprobs of the whole answer, if any."""
        chunk = self._chunk({} if self.kind == "chat" else "", view.finish_reason or "stop")
        chunk["choices"][0]["logprobs"] = self._logprobs(view)
        return chunk | degraded_json(view)

    def usage_chunk(self, view: JobView) -> dict[str, Any]:
        """The chunk of `stream_options.include_usage`."""
        return self._envelope(self._chunk_kind) | {"choices": [], "usage": usage(view), "queue": queue_facts(view)}

    def _chunk(self, what: dict[str, Any] | str, finish_reason: str | None = None) -> dict[str, Any]:
        choice: dict[str, Any] = {"index": 0, "logprobs": None, "finish_reason": finish_reason}
        choice["delta" if self.kind == "chat" else "text"] = what
        return self._envelope(self._chunk_kind) | {"choices": [choice]}

    def _logprobs(self, view: JobView) -> dict[str, Any] | None:
        return chat_logprobs(view) if self.kind == "chat" else completion_logprobs(view)

    @property
    def _chunk_kind(self) -> str:
        return "chat.completion.chunk" if self.kind == "chat" else "text_completion"

    def _envelope(self, kind: str) -> dict[str, Any]:
        return {
            "id": self.id,
            "object": kind,
            "created": self.created,
            "model": self.model,
            "system_fingerprint": None,
        }


def format_of(view: JobView, kind: AnswerKind) -> AnswerFormat:
    """The shape of the answers about one job."""
    return AnswerFormat(kind, view.id, view.model, view.admitted_ms // 1000)


def usage(view: JobView) -> dict[str, Any]:
    """Token counts as OpenAI names them."""
    prompt, cached, completion = 0, 0, 0
    if view.usage is not None:
        prompt, cached, completion = (
            view.usage.prompt_tokens,
            view.usage.cached_tokens,
            view.usage.completion_tokens,
        )
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": {"cached_tokens": cached},
    }


def end_problem(view: JobView) -> ApiError | None:
    """The error that an ended job is on these routes; None for one that succeeded."""
    if view.state is JobState.SUCCEEDED:
        return None
    said = error_json(view) or {"code": view.state.value, "message": "the job has not ended"}
    message = f"job {view.id}: {said['message']}"
    if view.state is JobState.EXPIRED:
        return ApiError("deadline_exceeded", message)
    if view.state is JobState.CANCELED:
        return ApiError("job_canceled", message)
    if view.code in {EndCode.CONTEXT_LENGTH_EXCEEDED, EndCode.INVALID_VALUE}:
        return ApiError(view.code, message)
    return ApiError("job_failed", message)
