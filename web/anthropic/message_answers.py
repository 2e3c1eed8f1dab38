"""Convert a job to a message of Anthropic's API: its blocks, its stop reason and its token counts; pure functions."""

from collections.abc import Iterator
from typing import Any

from pydantic_core import from_json

from shared.answer_parts import AnswerParts, Call, Delta, PartsReader
from shared.jobs.job import JobView, Usage
from web.anthropic.error_shape import anthropic_error
from web.api.job_json import CACHED, degraded_json, queue_facts
from web.api.stream_format import NewText, StreamFormat, frame
from web.http.api_errors import ApiError, error_response
from web.openai.chat_answers import finish_reason, has_parts, parts_of

#: Anthropic's word for each reason why an answer of a chat ended.
_STOP_REASONS = {"length": "max_tokens", "tool_calls": "tool_use", "content_filter": "refusal"}


def message_json(view: JobView) -> dict[str, Any]:
    """Return the message for a job that has succeeded."""
    return (
        _envelope(view)
        | {"content": _blocks(view), "usage": usage_json(view), "queue": queue_facts(view)}
        | stop_fields(view)
        | degraded_json(view)
    )


def early_message_json(view: JobView) -> dict[str, Any]:
    """Return the message with which a stream begins: without content. Its token count is the door's estimate."""
    counts = {"input_tokens": view.prompt_tokens, "output_tokens": 0}
    usage = {"cache_creation_input_tokens": 0, "cache_read_input_tokens": 0} | counts
    return _envelope(view) | {"content": [], "usage": usage, "stop_reason": None, "stop_sequence": None}


def stop_fields(view: JobView) -> dict[str, Any]:
    """Return why the answer ended, and the stop sequence that ended it, if one did.

    Some upstreams say `stop` beside calls of tools, but Anthropic's clients run the calls only after `tool_use`.
    """
    reason, stop = _STOP_REASONS.get(finish_reason(view), "end_turn"), view.extra.get("stop_sequence")
    if reason == "max_tokens" and _has_filled_the_context(view):
        reason = "model_context_window_exceeded"
    if reason == "end_turn" and upstream_parts(view).calls:
        reason = "tool_use"
    if reason == "end_turn" and stop:
        return {"stop_reason": "stop_sequence", "stop_sequence": stop}
    return {"stop_reason": reason, "stop_sequence": None}


def _has_filled_the_context(view: JobView) -> bool:
    """Return whether an answer that was cut is shorter than its client allowed, and was not cut under overload."""
    allowed = view.form.get("max_tokens")
    generated = view.usage.completion_tokens if view.usage is not None else 0
    is_generated = CACHED not in view.form
    return isinstance(allowed, int) and generated < allowed and is_generated and not view.degraded


def usage_json(view: JobView) -> dict[str, int]:
    """Return the job's token counts. As in Anthropic's API, `input_tokens` are those that were not in a cache."""
    counts = view.usage or Usage()
    return {
        "input_tokens": max(0, counts.prompt_tokens - counts.cached_tokens),
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": counts.cached_tokens,
        "output_tokens": counts.completion_tokens,
    }


def call_block(job_id: str, index: int, call: Call) -> dict[str, Any]:
    """Return the block of a call. Its id is the same whether the answer is read whole or as a stream."""
    return {"type": "tool_use", "id": f"toolu_{job_id}_{index}", "name": call.name, "input": _input(call.arguments)}


def text_block(text: str) -> dict[str, Any]:
    """Return the block of a text."""
    return {"type": "text", "text": text}


def thinking_block(text: str) -> dict[str, Any]:
    """Return the block with the model's reasoning. There is no signature, because nothing has to be verified."""
    return {"type": "thinking", "thinking": text, "signature": ""}


def upstream_parts(view: JobView) -> AnswerParts:
    """Return the blocks of an upstream's answer beside its text: its reasoning and its calls of tools."""
    others = view.extra.get("upstream", {})
    reasoning = others.get("reasoning_content") or others.get("reasoning") or ""
    functions = [call.get("function") or {} for call in others.get("tool_calls") or ()]
    calls = [Call(str(function.get("name", "")), str(function.get("arguments", ""))) for function in functions]
    return AnswerParts(reasoning=reasoning, calls=calls)


def _blocks(view: JobView) -> list[dict[str, Any]]:
    parts, others = parts_of(view), upstream_parts(view)
    reasoning = parts.reasoning + others.reasoning
    calls = [*parts.calls, *others.calls]
    return [
        *([thinking_block(reasoning)] if reasoning else []),
        *([text_block(parts.content)] if parts.content else []),
        *(call_block(view.id, index, call) for index, call in enumerate(calls)),
    ]


def _input(arguments: str) -> dict[str, Any]:
    """Return the arguments as an object. If they were cut, it has the complete part, as in clients' streams."""
    try:
        value = from_json(arguments or "{}", allow_partial=True)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


def _envelope(view: JobView) -> dict[str, Any]:
    return {"id": f"msg_{view.id}", "type": "message", "role": "assistant", "model": view.model}


#: An event, whose field `type` is its name.
Event = dict[str, Any]
#: The event that shows that a stream without news is still open.
PING: Event = {"type": "ping"}


def _frame(event: Event) -> str:
    return frame(event["type"], event)


class MessageEvents(StreamFormat):
    """Makes the events of one stream, in answer to the request with the id `request_id`."""

    comment = _frame(PING)

    def __init__(self, view: JobView, request_id: str) -> None:
        self._view, self._request_id = view, request_id
        #: Reads the parts of the text; None if the whole text is content.
        self._reader = PartsReader() if has_parts(view) else None
        #: The kind of the block that is open, and how many blocks and calls there were.
        self._open = ""
        self._n_blocks = self._n_calls = 0

    def begin(self) -> Iterator[str]:
        """Yield the events before the content."""
        yield _frame({"type": "message_start", "message": early_message_json(self._view)})
        yield _frame(PING)

    def add(self, new: NewText) -> Iterator[str]:
        """Yield the events for a further piece of the answer's text."""
        for delta in [Delta("content", new.text)] if self._reader is None else self._reader.feed(new.text):
            yield from self._grow(delta)

    def end(self, view: JobView) -> Iterator[str]:
        """Yield the events for the parts of an upstream's answer beside its text, and those that end the message."""
        others = upstream_parts(view)
        if others.reasoning:
            yield from self._grow(Delta("reasoning", others.reasoning))
        for call in others.calls:
            yield from self._grow(Delta("call", call.name))
            yield from self._grow(Delta("arguments", call.arguments))
        yield from self._close()
        usage = {"usage": usage_json(view), "queue": queue_facts(view)} | degraded_json(view)
        yield _frame({"type": "message_delta", "delta": stop_fields(view)} | usage)
        yield _frame({"type": "message_stop"})

    def error(self, problem: ApiError) -> str:
        """Return the event of an error."""
        error = error_response(problem)
        return _frame(anthropic_error(error.body, error.status, self._request_id))

    def _grow(self, delta: Delta) -> Iterator[str]:
        if delta.kind == "call":
            yield from self._start("arguments", call_block(self._view.id, self._n_calls, Call(delta.text)))
            self._n_calls += 1
            return
        if delta.kind != self._open:
            yield from self._start(delta.kind, thinking_block("") if delta.kind == "reasoning" else text_block(""))
        if delta.kind == "arguments":
            grown = {"type": "input_json_delta", "partial_json": delta.text}
        elif delta.kind == "reasoning":
            grown = {"type": "thinking_delta", "thinking": delta.text}
        else:
            grown = {"type": "text_delta", "text": delta.text}
        yield _frame({"type": "content_block_delta", "index": self._n_blocks - 1, "delta": grown})

    def _start(self, kind: str, block: dict[str, Any]) -> Iterator[str]:
        yield from self._close()
        self._open, self._n_blocks = kind, self._n_blocks + 1
        yield _frame({"type": "content_block_start", "index": self._n_blocks - 1, "content_block": block})

    def _close(self) -> Iterator[str]:
        if self._open:
            self._open = ""
            yield _frame({"type": "content_block_stop", "index": self._n_blocks - 1})
