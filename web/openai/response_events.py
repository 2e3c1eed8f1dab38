"""The stream of a response: its numbered events; pure functions.

The number of a text event is computed from the position of the event's last character in the whole text. The numbers
therefore increase with gaps. The same text has the same number whether it was read from the event stream, from a second
attempt after a lost worker, or from the stored result, so a client can resume the stream after any number.
"""

from collections.abc import Iterator
from typing import Any

from shared.answer_parts import first_mark
from shared.jobs.job import JobView
from web.api.logprobs import job_logprobs
from web.api.stream_format import NewText, StreamFormat, frame
from web.http.api_errors import ApiError, error_response
from web.openai.chat_answers import has_parts
from web.openai.output_events import OutputEvent, OutputEvents
from web.openai.responses_answers import (
    early_response_json,
    may_call,
    message_json,
    namespaces_in,
    part_json,
    response_json,
    status_of,
)

#: The sequence numbers of the events before the text.
_CREATED, _QUEUED, _IN_PROGRESS, _ITEM, _PART = range(5)
#: The sequence numbers of the events after the text, for an empty text. The length of the text is added to each number.
_TEXT_DONE, _PART_DONE, _ITEM_DONE, _END = range(_PART + 1, _PART + 5)
#: The last event of the stream for each final status. OpenAI defines no event for a canceled response, so `failed` is
#: sent.
_END_KIND = {"completed": "completed", "incomplete": "incomplete", "failed": "failed", "cancelled": "failed"}


class ResponseEvents(StreamFormat):
    """Formats the events of one response for one client: all, or only those with a number above `after`."""

    shows_failures = True

    def __init__(self, view: JobView, after: int | None = None) -> None:
        self._view = view
        self._after = -1 if after is None else after
        self._item = {"item_id": message_json(view.id, None, "")["id"], "output_index": 0}
        self._content = self._item | {"content_index": 0}
        #: The text formatted so far.
        self._sent = ""
        self._in_progress = self._item_added = False
        #: Makes the events of the output if the answer may call tools, or those from where it turns out to have another
        #: part than its message. All other answers have only one item, a message.
        self._output = (
            OutputEvents(view.id, _PART + 1, self._after, namespaces=namespaces_in(view)) if may_call(view) else None
        )

    def begin(self) -> Iterator[str]:
        """Yield the events before the first attempt."""
        yield from self._frame("created", _CREATED, {"response": early_response_json(self._view, "queued")})
        yield from self._frame("queued", _QUEUED, {"response": early_response_json(self._view, "queued")})

    def error(self, problem: ApiError) -> str:
        """Return the event of an error. OpenAI's packages raise an exception when they receive it."""
        number = _PART + len(self._sent) + 1 if self._output is None else self._output.last_number
        error = error_response(problem).body["error"]
        flat = {name: error[name] for name in ("code", "message", "param")}
        return frame("error", flat | {"type": "error", "sequence_number": number, "error": error})

    def started(self) -> Iterator[str]:
        """Yield the event for the start of the first attempt."""
        if not self._in_progress:
            self._in_progress = True
            body = {"response": early_response_json(self._view, "in_progress")}
            yield from self._frame("in_progress", _IN_PROGRESS, body)

    def _add_item(self) -> Iterator[str]:
        yield from self.started()
        if not self._item_added:
            self._item_added = True
            item = message_json(self._view.id, None, "in_progress")
            yield from self._frame("output_item.added", _ITEM, {"output_index": 0, "item": item})
            yield from self._frame("content_part.added", _PART, self._content | {"part": part_json("")})

    def add(self, new: NewText) -> Iterator[str]:
        """Yield the events for new text."""
        text = self._sent + new.text
        if self._output is None and has_parts(self._view):
            yield from self._divide(text)
        if self._output is not None:
            yield from self.started()
            unsent, self._sent = text[len(self._sent) :], text
            yield from self._output_frames(self._output.add(unsent))
            return
        yield from self._plain_text(text)

    def _divide(self, text: str) -> Iterator[str]:
        """If the text has other parts than a message, send what stands before them, and let them be sent as items.

        The place is the same for each reader and each attempt, and so are the numbers of the events.
        """
        place = first_mark(text, len(self._sent))
        if place is None:
            return
        if place > len(self._sent):
            yield from self._plain_text(text[:place])
        if place:
            yield from self._close_item("completed", None)
        first = _PART + 1 if not place else place + _END
        n_messages, namespaces = 1 if place else 0, namespaces_in(self._view)
        self._output = OutputEvents(self._view.id, first, self._after, n_messages=n_messages, namespaces=namespaces)

    def _plain_text(self, text: str) -> Iterator[str]:
        """Send the rest of the only message so far."""
        yield from self._add_item()
        known = max(len(self._sent), self._after - _PART)
        self._sent = text
        body = self._content | {"delta": text[known:], "logprobs": []}
        yield from self._frame("output_text.delta", _PART + len(text), body)

    def end(self, view: JobView) -> Iterator[str]:
        """Yield the events that close the items and end the response."""
        self._view, response = view, response_json(view)
        if self._output is not None:
            status = "completed" if status_of(view) == "completed" else "incomplete"
            yield from self._output_frames(self._output.end(status, has_output=bool(response["output"])))
            yield from self._frame(_END_KIND[response["status"]], self._output.last_number, {"response": response})
            return
        if response["output"]:
            yield from self._add_item()
        if self._item_added:
            # Logprobs are in the store only after the job has ended, and then for the whole text.
            status = "completed" if status_of(view) == "completed" else "incomplete"
            yield from self._close_item(status, job_logprobs(view))
        yield from self._frame(_END_KIND[response["status"]], len(self._sent) + _END, {"response": response})

    def _output_frames(self, events: Iterator[OutputEvent]) -> Iterator[str]:
        for event in events:
            yield from self._frame(event.kind, event.number, event.body)

    def _close_item(self, status: str, logprobs: list[dict[str, Any]] | None) -> Iterator[str]:
        text, length = self._sent, len(self._sent)
        done = self._content | {"text": text, "logprobs": logprobs or []}
        yield from self._frame("output_text.done", length + _TEXT_DONE, done)
        part = {"part": part_json(text, logprobs)}
        yield from self._frame("content_part.done", length + _PART_DONE, self._content | part)
        item = message_json(self._view.id, text, status, logprobs)
        yield from self._frame("output_item.done", length + _ITEM_DONE, {"output_index": 0, "item": item})

    def _frame(self, kind: str, number: int, body: dict[str, Any]) -> Iterator[str]:
        if number > self._after:
            yield frame(f"response.{kind}", body | {"type": f"response.{kind}", "sequence_number": number})
