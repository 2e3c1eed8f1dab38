"""The events of a response that reasons or calls tools: its items open, grow and close in order; pure functions.

The number of an event follows from its place in the text of the answer (shared/answer_parts.py), so it is the same
for each reader and each attempt.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

from shared.answer_parts import END, Call, Delta, PartsReader, segments
from web.openai.response_functions import Namespaces
from web.openai.responses_answers import call_json, message_json, part_json, reasoning_json, reasoning_part_json

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


class OutputEvents:
    """Makes the events of one response. Their numbers are greater than `first`, and deltas begin after `after`.

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
        self._n_calls = self._n_thoughts = 0
        self._n_items = self._n_messages = n_messages
        #: The item that is open: reasoning, the text of the message, or a call.
        self._thought: str | None = None
        self._text: str | None = None
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
            yield from self._open_message()
            yield from self._close_message(status, self._number(_CLOSE_AT_ONCE))
        elif self._thought is not None:
            yield from self._close_thought(status, self._position)
        elif self._text is not None:
            yield from self._close_message(status, self._number(_CLOSE))
        elif self._call is not None:
            yield from self._close_call(status)

    def _grow(self, delta: Delta, began: int) -> Iterator[OutputEvent]:
        if delta.kind == "call":
            yield from self._close_before(self._position)
            self._call, self._n_items = Call(delta.text), self._n_items + 1
            item = self._call_item("in_progress")
            yield self._event("output_item.added", _OPEN, {"output_index": self._index, "item": item})
            return
        # Positions count the marks of the text as well, so a delta's own characters are those from `began` on.
        unknown = delta.text[max(0, self._known - began) :]
        if delta.kind == "arguments" and self._call is not None:
            self._call.arguments += delta.text
            place = {"item_id": self._call_item("in_progress")["id"], "output_index": self._index}
            yield self._event("function_call_arguments.delta", 0, place | {"delta": unknown})
        elif delta.kind == "reasoning":
            if self._thought is None:
                yield from self._close_before(began)
                yield from self._open_thought(began)
            self._thought = (self._thought or "") + delta.text
            yield self._event("reasoning_text.delta", 0, self._thought_place | {"delta": unknown})
        elif delta.kind == "content":
            if self._text is None:
                yield from self._close_before(began)
                yield from self._open_message(began)
            self._text = (self._text or "") + delta.text
            yield self._event("output_text.delta", 0, self._content | {"delta": unknown, "logprobs": []})

    def _close_before(self, position: int) -> Iterator[OutputEvent]:
        """Close the model's reasoning or message where the next item begins: only then it is complete."""
        if self._thought is not None:
            yield from self._close_thought("completed", position)
        elif self._text is not None:
            yield from self._close_message("completed", self._first + _STEP * position + _CLOSE)

    def _open_thought(self, position: int) -> Iterator[OutputEvent]:
        self._thought, self._n_items = "", self._n_items + 1
        item = reasoning_json(self._job_id, None, "in_progress", index=self._n_thoughts)
        number = self._first + _STEP * position + _OPEN
        yield OutputEvent("output_item.added", number, {"output_index": self._index, "item": item})
        yield OutputEvent("content_part.added", number + 1, self._thought_place | {"part": reasoning_part_json("")})

    def _close_thought(self, status: str, position: int) -> Iterator[OutputEvent]:
        """Close the reasoning where the next item begins: only then it is known to be complete."""
        text, self._thought = self._thought or "", None
        number = self._first + _STEP * position + _CLOSE
        item = reasoning_json(self._job_id, text, status, index=self._n_thoughts)
        yield OutputEvent("reasoning_text.done", number, self._thought_place | {"text": text})
        part = {"part": reasoning_part_json(text)}
        yield OutputEvent("content_part.done", number + 1, self._thought_place | part)
        yield OutputEvent("output_item.done", number + 2, {"output_index": self._index, "item": item})
        self._n_thoughts += 1

    def _open_message(self, position: int = 0) -> Iterator[OutputEvent]:
        self._text, self._n_items = "", self._n_items + 1
        item = message_json(self._job_id, None, "in_progress", index=self._n_messages)
        number = self._first + _STEP * position + _OPEN
        yield OutputEvent("output_item.added", number, {"output_index": self._index, "item": item})
        yield OutputEvent("content_part.added", number + 1, self._content | {"part": part_json("")})

    def _close_message(self, status: str, number: int) -> Iterator[OutputEvent]:
        text, self._text = self._text or "", None
        item = message_json(self._job_id, text, status, index=self._n_messages)
        yield OutputEvent("output_text.done", number, self._content | {"text": text, "logprobs": []})
        yield OutputEvent("content_part.done", number + 1, self._content | {"part": part_json(text)})
        yield OutputEvent("output_item.done", number + 2, {"output_index": self._index, "item": item})
        self._n_messages += 1

    def _close_call(self, status: str) -> Iterator[OutputEvent]:
        item = self._call_item(status)
        place = {"item_id": item["id"], "output_index": self._index}
        done = place | {"arguments": item["arguments"], "name": item["name"]}
        yield self._event("function_call_arguments.done", _CLOSE, done)
        yield self._event("output_item.done", _CLOSE + 1, {"output_index": self._index, "item": item})
        self._call, self._n_calls = None, self._n_calls + 1

    def _call_item(self, status: str) -> dict[str, Any]:
        return call_json(self._job_id, self._n_calls, self._call or Call(""), status, self._namespaces)

    @property
    def _index(self) -> int:
        return self._n_items - 1

    @property
    def _content(self) -> dict[str, Any]:
        item_id = message_json(self._job_id, None, "", index=self._n_messages)["id"]
        return {"item_id": item_id, "output_index": self._index, "content_index": 0}

    @property
    def _thought_place(self) -> dict[str, Any]:
        item_id = reasoning_json(self._job_id, None, "", index=self._n_thoughts)["id"]
        return {"item_id": item_id, "output_index": self._index, "content_index": 0}

    def _number(self, within: int) -> int:
        return self._first + _STEP * self._position + within

    def _event(self, kind: str, within: int, body: dict[str, Any]) -> OutputEvent:
        return OutputEvent(kind, self._number(within), body)
