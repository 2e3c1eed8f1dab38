"""The stream of a response: its numbered events; pure functions.

The number of a text event is computed from the position of the event's last character in the whole text. The numbers
therefore increase with gaps. The same text has the same number whether it was read from the event stream, from a second
attempt after a lost worker, or from the stored result, so a client can resume the stream after any number.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from shared.answer_parts import END, Call, Delta, PartsReader, first_mark, segments
from shared.jobs.job import JobView
from web.api.candidates import job_logprobs
from web.api.stream_format import NewText, StreamFormat, frame
from web.http.api_errors import ApiError, error_response
from web.openai.chat_answers import has_parts
from web.openai.responses_answers import (
    call_json,
    early_response_json,
    message_json,
    namespaces_in,
    part_json,
    reasoning_json,
    reasoning_part_json,
    response_json,
    status_of,
)
from web.openai.tools_schema import Namespaces

#: Each character of the text has this many numbers, because several events may belong to one place.
_STEP = 10
#: Which of these numbers the events have: those that close an item, those that open one, and those that close an item
#: which opened at the same place.
_CLOSE, _OPEN, _CLOSE_AT_ONCE, _LAST = 1, 4, 6, 9


class OutputEvent(NamedTuple):
    """One event: its kind, as in `response.<kind>`, its sequence number, and its fields."""

    kind: str
    number: int
    body: dict[str, Any]


class _TextForm(NamedTuple):
    """The item of a text, its only part, the prefix of its events, and more fields of these."""

    item: Callable[..., dict[str, Any]]
    part: Callable[[str], dict[str, Any]]
    event: str
    more: dict[str, Any]


#: By the kind of a delta (shared/answer_parts.py).
_TEXTS = {
    "content": _TextForm(message_json, part_json, "output_text", {"logprobs": []}),
    "reasoning": _TextForm(reasoning_json, reasoning_part_json, "reasoning_text", {}),
}


class OutputEvents:
    """Makes the events of a response that reasons or calls tools: its items open, grow and close in order.

    The number of an event follows from its place in the text of the answer, so it is the same for each reader and each
    attempt. It is greater than `first`, and deltas begin after `after`.

    The response has `n_messages` earlier messages, whose events are not made here. `namespaces` are as in `call_json`.
    """

    def __init__(
        self, job_id: str, first: int, after: int, *, n_messages: int = 0, namespaces: Namespaces | None = None
    ) -> None:
        self._job_id, self._first = job_id, first
        self._namespaces = namespaces
        #: How many characters of the text the client has received in an earlier stream.
        self._known = max(0, (after - first) // _STEP)
        self._reader = PartsReader()
        self._position = 0
        #: How many items there are, and how many of each kind were closed.
        self._n_items = n_messages
        self._counts = Counter({"content": n_messages})
        #: The item that is open: the kind of a text and what it has so far, or a call.
        self._open, self._text = "", ""
        self._call: Call | None = None

    @property
    def last_number(self) -> int:
        """The number of the event that ends the response here."""
        return self._number(_LAST)

    def add(self, text: str) -> Iterator[OutputEvent]:
        """Yield the events for a further piece of the answer's text."""
        for segment in segments(text):
            began = self._position
            self._position += len(segment)
            for delta in self._reader.feed(segment):
                yield from self._grow(delta, began)
            if segment == END and self._call is not None:
                yield from self._close_call("completed")

    def end(self, status: str, *, has_output: bool) -> Iterator[OutputEvent]:
        """Yield the events that close the last item. An answer without any text is an empty message."""
        if has_output and not self._n_items:
            yield from self._open_text("content", 0)
            yield from self._close_text(status, self._position, _CLOSE_AT_ONCE)
        elif self._open:
            yield from self._close_text(status, self._position)
        elif self._call is not None:
            yield from self._close_call(status)

    def _grow(self, delta: Delta, began: int) -> Iterator[OutputEvent]:
        if delta.kind == "call":
            if self._open:
                yield from self._close_text("completed", self._position)
            self._call, self._n_items = Call(delta.text), self._n_items + 1
            item = self._call_item("in_progress")
            yield self._event("output_item.added", _OPEN, {"output_index": self._index, "item": item})
            return
        # Positions count the marks of the text as well, so a delta's own characters are those from `began` on.
        unknown = delta.text[max(0, self._known - began) :]
        if delta.kind == "arguments" and self._call is not None:
            self._call.arguments += delta.text
            item_id = self._call_item("in_progress")["id"]
            body = {"item_id": item_id, "output_index": self._index, "delta": unknown}
            yield self._event("function_call_arguments.delta", 0, body)
        elif delta.kind in _TEXTS:
            if self._open and self._open != delta.kind:
                yield from self._close_text("completed", began)
            if not self._open:
                yield from self._open_text(delta.kind, began)
            self._text += delta.text
            form = _TEXTS[delta.kind]
            yield self._event(f"{form.event}.delta", 0, self._content | {"delta": unknown} | form.more)

    def _open_text(self, kind: str, position: int) -> Iterator[OutputEvent]:
        self._open, self._text, self._n_items = kind, "", self._n_items + 1
        form, number = _TEXTS[kind], self._first + _STEP * position + _OPEN
        item = form.item(self._job_id, None, "in_progress", index=self._counts[kind])
        yield OutputEvent("output_item.added", number, {"output_index": self._index, "item": item})
        yield OutputEvent("content_part.added", number + 1, self._content | {"part": form.part("")})

    def _close_text(self, status: str, position: int, within: int = _CLOSE) -> Iterator[OutputEvent]:
        """Close the reasoning or the message where the next item begins: only then it is known to be complete."""
        form, number = _TEXTS[self._open], self._first + _STEP * position + within
        item = form.item(self._job_id, self._text, status, index=self._counts[self._open])
        yield OutputEvent(f"{form.event}.done", number, self._content | {"text": self._text} | form.more)
        yield OutputEvent("content_part.done", number + 1, self._content | {"part": form.part(self._text)})
        yield OutputEvent("output_item.done", number + 2, {"output_index": self._index, "item": item})
        self._counts[self._open] += 1
        self._open = ""

    def _close_call(self, status: str) -> Iterator[OutputEvent]:
        item = self._call_item(status)
        place = {"item_id": item["id"], "output_index": self._index}
        done = place | {"arguments": item["arguments"], "name": item["name"]}
        yield self._event("function_call_arguments.done", _CLOSE, done)
        yield self._event("output_item.done", _CLOSE + 1, {"output_index": self._index, "item": item})
        self._counts["call"] += 1
        self._call = None

    def _call_item(self, status: str) -> dict[str, Any]:
        return call_json(self._job_id, self._counts["call"], self._call or Call(""), status, self._namespaces)

    @property
    def _index(self) -> int:
        return self._n_items - 1

    @property
    def _content(self) -> dict[str, Any]:
        """The place of the content of the open text."""
        item_id = _TEXTS[self._open].item(self._job_id, None, "", index=self._counts[self._open])["id"]
        return {"item_id": item_id, "output_index": self._index, "content_index": 0}

    def _number(self, within: int) -> int:
        return self._first + _STEP * self._position + within

    def _event(self, kind: str, within: int, body: dict[str, Any]) -> OutputEvent:
        return OutputEvent(kind, self._number(within), body)


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
        # Jobs of an earlier version have parts only if they may call tools.
        may_call = view.form.get("calls", has_parts(view))
        self._output = (
            OutputEvents(view.id, _PART + 1, self._after, namespaces=namespaces_in(view)) if may_call else None
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
