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
from web.api.file_search import NO_TEXTS, SearchedFiles, SearchTexts
from web.api.stream_format import NewText, StreamFormat, frame
from web.http.api_errors import ApiError, error_response
from web.openai.chat_answers import has_parts
from web.openai.file_search_answers import Annotator, search_json
from web.openai.response_tools import Namespaces
from web.openai.responses_answers import (
    annotator_of,
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
    With an `annotator`, the item of a search is before all others.
    """

    def __init__(
        self,
        job_id: str,
        first: int,
        after: int,
        *,
        n_messages: int = 0,
        namespaces: Namespaces | None = None,
        annotator: Annotator | None = None,
    ) -> None:
        self._job_id, self._first = job_id, first
        self._namespaces, self._annotator = namespaces, annotator
        #: How many numbers annotations have at each place, after the delta that ends there.
        self._n_annotations = 0 if annotator is None else annotator.most_at_once
        self._step = _STEP + self._n_annotations
        #: How many characters of the text the client has received in an earlier stream.
        self._known = max(0, (after - first) // self._step)
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

    def limit_files(self, n_files: int) -> None:
        """Cite no more than the first of the files from here on."""
        if self._annotator is not None:
            self._annotator.limit(n_files)

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
            if self._open == "content" and self._annotator is not None:
                yield from self._annotated(self._position, self._annotator.finish())
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
        if delta.kind == "arguments" and self._call is not None:
            self._call.arguments += delta.text
            unknown = delta.text[max(0, self._known - began) :]
            item_id = self._call_item("in_progress")["id"]
            body = {"item_id": item_id, "output_index": self._index, "delta": unknown}
            yield self._event("function_call_arguments.delta", 0, body)
        elif delta.kind in _TEXTS:
            if self._open and self._open != delta.kind:
                yield from self._close_text("completed", began)
            if not self._open:
                yield from self._open_text(delta.kind, began)
            yield from self._add_text(delta, began)

    def _add_text(self, delta: Delta, began: int) -> Iterator[OutputEvent]:
        """Send a further piece of the open text, divided where it has annotations."""
        form = _TEXTS[delta.kind]
        annotates = self._annotator is not None and delta.kind == "content"
        pieces = self._annotator.feed(delta.text) if self._annotator and annotates else [(delta.text, [])]
        for piece, annotations in pieces:
            self._text += piece
            unknown, began = piece[max(0, self._known - began) :], began + len(piece)
            body = self._content | {"delta": unknown} | form.more
            yield OutputEvent(f"{form.event}.delta", self._number(0, began), body)
            yield from self._annotated(began, annotations)

    def _annotated(self, position: int, annotations: list[dict[str, Any]]) -> Iterator[OutputEvent]:
        """Yield the events of annotations that were added at this place."""
        known = 0 if self._annotator is None else len(self._annotator.annotations) - len(annotations)
        for i, annotation in enumerate(annotations):
            body = self._content | {"annotation_index": known + i, "annotation": annotation}
            number = self._first + self._step * position + 1 + i
            yield OutputEvent("output_text.annotation.added", number, body)

    def _open_text(self, kind: str, position: int) -> Iterator[OutputEvent]:
        self._open, self._text, self._n_items = kind, "", self._n_items + 1
        if kind == "content" and self._annotator is not None:
            self._annotator.begin()
        form, number = _TEXTS[kind], self._number(_OPEN, position)
        item = form.item(self._job_id, None, "in_progress", index=self._counts[kind])
        yield OutputEvent("output_item.added", number, {"output_index": self._index, "item": item})
        yield OutputEvent("content_part.added", number + 1, self._content | {"part": form.part("")})

    def _close_text(self, status: str, position: int, within: int = _CLOSE) -> Iterator[OutputEvent]:
        """Close the reasoning or the message where the next item begins: only then it is known to be complete."""
        form, number = _TEXTS[self._open], self._number(within, position)
        item, part = form.item(self._job_id, self._text, status, index=self._counts[self._open]), form.part(self._text)
        if self._open == "content" and self._annotator is not None:
            part |= {"annotations": self._annotator.annotations}
            item |= {"content": [part]}
        yield OutputEvent(f"{form.event}.done", number, self._content | {"text": self._text} | form.more)
        yield OutputEvent("content_part.done", number + 1, self._content | {"part": part})
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
        return self._n_items - (1 if self._annotator is None else 0)

    @property
    def _content(self) -> dict[str, Any]:
        """The place of the content of the open text."""
        item_id = _TEXTS[self._open].item(self._job_id, None, "", index=self._counts[self._open])["id"]
        return {"item_id": item_id, "output_index": self._index, "content_index": 0}

    def _number(self, within: int, position: int | None = None) -> int:
        """Return the number of an event at a place, by default the present one. Annotations follow the delta, 0."""
        place = self._step * (self._position if position is None else position)
        return self._first + place + (self._n_annotations + within if within else 0)

    def _event(self, kind: str, within: int, body: dict[str, Any]) -> OutputEvent:
        return OutputEvent(kind, self._number(within), body)


#: The sequence numbers of the events before the text.
_CREATED, _QUEUED, _IN_PROGRESS, _ITEM, _PART = range(5)
#: That of the first event of a search for files, and how many there are. Such a response has its items after these.
_SEARCH, _SEARCH_EVENTS = _IN_PROGRESS + 1, 5
#: The sequence numbers of the events after the text, for an empty text. The length of the text is added to each number.
_TEXT_DONE, _PART_DONE, _ITEM_DONE, _END = range(_PART + 1, _PART + 5)
#: The last event of the stream for each final status. OpenAI defines no event for a canceled response, so `failed` is
#: sent.
_END_KIND = {"completed": "completed", "incomplete": "incomplete", "failed": "failed", "cancelled": "failed"}


class ResponseEvents(StreamFormat):
    """Formats the events of one response for one client: all, or only those with a number above `after`."""

    shows_failures = True

    def __init__(self, view: JobView, after: int | None = None, texts: SearchTexts = NO_TEXTS) -> None:
        self._view, self._texts = view, texts
        self._searched = SearchedFiles.read(view)
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
        self._output: OutputEvents | None = None
        if self._searched is not None:
            first = _SEARCH + _SEARCH_EVENTS
            self._output = OutputEvents(
                view.id, first, self._after, namespaces=namespaces_in(view), annotator=annotator_of(view)
            )
        elif may_call:
            self._output = OutputEvents(view.id, _PART + 1, self._after, namespaces=namespaces_in(view))

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
            if self._searched is not None:
                yield from self._search_frames(self._searched)

    def _search_frames(self, searched: SearchedFiles) -> Iterator[str]:
        """Yield the events of the search, which has ended before the response was admitted."""
        began = search_json(self._view.id, searched, self._texts, began=True)
        place = {"item_id": began["id"], "output_index": 0}
        steps = ["in_progress", "searching", *(["completed"] if searched.status == "completed" else [])]
        yield from self._frame("output_item.added", _SEARCH, {"output_index": 0, "item": began})
        for number, step in enumerate(steps, _SEARCH + 1):
            yield from self._frame(f"file_search_call.{step}", number, place)
        item = search_json(self._view.id, searched, self._texts)
        yield from self._frame("output_item.done", _SEARCH + _SEARCH_EVENTS - 1, {"output_index": 0, "item": item})

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
        self._view, response = view, response_json(view, self._texts)
        if self._output is not None:
            status = "completed" if status_of(view) == "completed" else "incomplete"
            if (searched := SearchedFiles.read(view)) is not None:
                self._output.limit_files(len(searched.files))
                yield from self.started() if response["output"] else ()
            has_answer = any(item["type"] != "file_search_call" for item in response["output"])
            yield from self._output_frames(self._output.end(status, has_output=has_answer))
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
