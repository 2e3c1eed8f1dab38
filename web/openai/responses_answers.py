"""Jobs → OpenAI's response objects, as the routes of `/v1/responses` answer them; pure."""

from typing import Any

from shared.jobs.job import JobView
from shared.jobs.outcomes import EndCode, FinishReason
from shared.jobs.states import JobState
from web.api.job_json import degraded_json, error_json, has_ended, queue_facts
from web.api.logprobs import job_logprobs
from web.openai.chat_answers import usage

#: Names a response and its one message by the job's id, so that logs on both sides can be joined.
PREFIX, MESSAGE_PREFIX = "resp_", "msg_"

_STATUS = {
    JobState.QUEUED: "queued",
    JobState.RUNNING: "in_progress",
    JobState.SUCCEEDED: "completed",
    JobState.FAILED: "failed",
    JobState.EXPIRED: "failed",
    JobState.CANCELED: "cancelled",
}
#: Ends for which the request is to blame; OpenAI has one word for all others.
_BAD_PROMPT = frozenset({EndCode.CONTEXT_LENGTH_EXCEEDED.value, EndCode.INVALID_VALUE.value})


def is_response(view: JobView) -> bool:
    """Whether the job was submitted as a response."""
    return view.form.get("api") == "responses"


def status_of(view: JobView) -> str:
    """OpenAI's word. A job whose cancel was asked for ends canceled whatever comes, so it is already."""
    if view.cancel_requested and not has_ended(view):
        return "cancelled"
    if view.state is JobState.SUCCEEDED and view.finish_reason == FinishReason.LENGTH:
        return "incomplete"
    return _STATUS[view.state]


def response_json(view: JobView) -> dict[str, Any]:
    """The response as it is. The texts of the request are not among it: they are not kept."""
    status = status_of(view)
    error = _error(view)
    return (
        _skeleton(view, status)
        | {
            "completed_at": (view.ended_ms or 0) // 1000 if view.state is JobState.SUCCEEDED else None,
            "error": error,
            "incomplete_details": {"reason": "max_output_tokens"} if status == "incomplete" else None,
            "output": _output(view, status),
            "usage": _usage(view) if has_ended(view) else None,
            "queue": queue_facts(view),
        }
        | degraded_json(view)
    )


def response_then(view: JobView, status: str) -> dict[str, Any]:
    """The response as it was when it had this status, before there was anything to tell of it."""
    return _skeleton(view, status) | {"queue": queue_facts(view)}


def has_logprobs(view: JobView) -> bool:
    """Whether the response's text comes, when it is whole, with how likely each of its tokens was."""
    return view.form.get("top_logprobs") is not None


def message_json(
    job_id: str, text: str | None, status: str, logprobs: list[dict[str, Any]] | None = None
) -> dict[str, Any]:
    """The one item of the output; `text` None: before its content begins."""
    content = [] if text is None else [part_json(text, logprobs)]
    return {
        "id": MESSAGE_PREFIX + job_id,
        "type": "message",
        "role": "assistant",
        "status": status,
        "content": content,
    }


def part_json(text: str, logprobs: list[dict[str, Any]] | None = None) -> dict[str, Any]:
    """The one part of the message's content."""
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": logprobs or []}


def _skeleton(view: JobView, status: str) -> dict[str, Any]:
    form = view.form
    kind = form.get("format", "text")
    return {
        "id": PREFIX + view.id,
        "object": "response",
        "created_at": view.admitted_ms // 1000,
        "completed_at": None,
        "status": status,
        "background": form.get("background", False),
        "error": None,
        "incomplete_details": None,
        "instructions": None,
        "max_output_tokens": form.get("max_output_tokens"),
        "metadata": view.metadata,
        "model": view.model,
        "output": [],
        "parallel_tool_calls": True,
        "previous_response_id": None,
        "temperature": form.get("temperature"),
        "text": None if kind == "json_schema" else {"format": {"type": kind}},
        "tool_choice": "auto",
        "tools": [],
        "top_logprobs": form.get("top_logprobs"),
        "top_p": form.get("top_p"),
        "truncation": "disabled",
        "usage": None,
    }


def _output(view: JobView, status: str) -> list[dict[str, Any]]:
    if not has_ended(view) or view.text is None or (not view.text and view.state is not JobState.SUCCEEDED):
        return []
    done = "completed" if status == "completed" else "incomplete"
    return [message_json(view.id, view.text, done, job_logprobs(view))]


def _error(view: JobView) -> dict[str, Any] | None:
    said = error_json(view)
    if said is None or said["code"] == EndCode.CANCELED:
        return None
    code = "invalid_prompt" if said["code"] in _BAD_PROMPT else "server_error"
    return {"code": code, "message": said["message"], "type": said["code"], "param": None}


def _usage(view: JobView) -> dict[str, Any]:
    counts = usage(view)
    return {
        "input_tokens": counts["prompt_tokens"],
        "input_tokens_details": counts["prompt_tokens_details"] | {"cache_write_tokens": 0},
        "output_tokens": counts["completion_tokens"],
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": counts["total_tokens"],
    }
