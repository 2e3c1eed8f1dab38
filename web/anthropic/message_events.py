"""The events of a streamed message: its blocks open, grow and close in order; pure functions."""

from collections.abc import Iterator
from typing import Any

from shared.answer_parts import Call, Delta, PartsReader
from shared.jobs.job import JobView
from web.anthropic.error_shape import anthropic_error
from web.anthropic.message_answers import (
    call_block,
    early_message_json,
    stop_fields,
    text_block,
    thinking_block,
    upstream_parts,
    usage_json,
)
from web.api.job_json import degraded_json, queue_facts
from web.api.stream_format import NewText, StreamFormat, frame
from web.http.api_errors import ApiError, error_response
from web.openai.chat_answers import has_parts

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
