"""A job's story → the events of a response's stream, numbered so that it can be taken up anywhere; pure.

A piece of text has the number of its last character. So the numbers grow, with gaps, and are the same
however the text came: from a stream, after a lost worker, or from the result when the stream is gone.
"""

import json
from collections.abc import Iterator
from typing import Any

from shared.jobs.job import JobView
from web.api.logprobs import job_logprobs
from web.http.api_errors import ApiError, error_response
from web.openai.responses_answers import message_json, part_json, response_json, response_then, status_of
from web.operations.event_stream import JobEnded, JobStarted, NothingNew, StreamItem, TextDelta

_CREATED, _QUEUED, _IN_PROGRESS, _ITEM, _PART = range(5)
#: Added to the length of the whole text.
_TEXT_DONE, _PART_DONE, _ITEM_DONE, _END = range(_PART + 1, _PART + 5)
#: There is no event for a response that was canceled.
_END_KIND = {"completed": "completed", "incomplete": "incomplete", "failed": "failed", "cancelled": "failed"}


class TornStream(Exception):
    """What was told cannot be continued; `frame` says so."""

    def __init__(self, frame: str) -> None:
        super().__init__(frame)
        self.frame = frame


class ResponseEvents:
    """One telling of one response, from the event after `after` on; None: all of it."""

    def __init__(self, view: JobView, after: int | None = None) -> None:
        self._view = view
        self._after = -1 if after is None else after
        self._item = {"item_id": message_json(view.id, None, "")["id"], "output_index": 0}
        self._content = self._item | {"content_index": 0}
        #: What has been told, and what the attempt under way has said: after a lost worker the same again.
        self._sent, self._running = "", ""
        self._begun = self._opened = False

    def told(self, story: Iterator[StreamItem]) -> Iterator[str]:
        """Frames; "" while nothing happens. Ends with the story, which is before the end where that was not seen.

        Raises Torn when an attempt tells another text than the last.
        """
        yield from self._frame("created", _CREATED, {"response": response_then(self._view, "queued")})
        yield from self._frame("queued", _QUEUED, {"response": response_then(self._view, "queued")})
        for item in story:
            if isinstance(item, NothingNew):
                yield ""
            elif isinstance(item, JobStarted):
                self._running = ""
                yield from self._begin()
            elif isinstance(item, TextDelta):
                self._running += item.text
                yield from self._text(self._running)
            else:
                yield from self._end(item)

    def broken(self, problem: ApiError) -> str:
        """The frame that ends a stream which cannot be told to its end; stock clients raise it."""
        number = _PART + len(self._sent) + 1
        error = error_response(problem).body["error"]
        flat = {name: error[name] for name in ("code", "message", "param")}
        return _event("error", flat | {"type": "error", "sequence_number": number, "error": error})

    def _begin(self) -> Iterator[str]:
        if not self._begun:
            self._begun = True
            body = {"response": response_then(self._view, "in_progress")}
            yield from self._frame("in_progress", _IN_PROGRESS, body)

    def _open(self) -> Iterator[str]:
        yield from self._begin()
        if not self._opened:
            self._opened = True
            item = message_json(self._view.id, None, "in_progress")
            yield from self._frame("output_item.added", _ITEM, {"output_index": 0, "item": item})
            yield from self._frame("content_part.added", _PART, self._content | {"part": part_json("")})

    def _text(self, text: str) -> Iterator[str]:
        if not text.startswith(self._sent):
            if self._sent.startswith(text):
                return
            why = f"job {self._view.id}: its worker was lost, and the next told another text"
            raise TornStream(self.broken(ApiError("job_failed", why)))
        if len(text) == len(self._sent):
            return
        yield from self._open()
        known = max(len(self._sent), self._after - _PART)
        self._sent = text
        body = self._content | {"delta": text[known:], "logprobs": []}
        yield from self._frame("output_text.delta", _PART + len(text), body)

    def _end(self, ended: JobEnded) -> Iterator[str]:
        self._view = view = ended.view
        response = response_json(view)
        if response["output"]:
            yield from self._text(view.text or "")
            yield from self._open()
        if self._opened:
            yield from self._close("completed" if status_of(view) == "completed" else "incomplete")
        yield from self._frame(_END_KIND[response["status"]], len(self._sent) + _END, {"response": response})

    def _close(self, status: str) -> Iterator[str]:
        text, length = self._sent, len(self._sent)
        # The store has them when the job has ended, and of its whole text.
        logprobs = job_logprobs(self._view)
        done = self._content | {"text": text, "logprobs": logprobs or []}
        yield from self._frame("output_text.done", length + _TEXT_DONE, done)
        part = {"part": part_json(text, logprobs)}
        yield from self._frame("content_part.done", length + _PART_DONE, self._content | part)
        item = message_json(self._view.id, text, status, logprobs)
        yield from self._frame("output_item.done", length + _ITEM_DONE, {"output_index": 0, "item": item})

    def _frame(self, kind: str, number: int, body: dict[str, Any]) -> Iterator[str]:
        if number > self._after:
            yield _event(f"response.{kind}", body | {"type": f"response.{kind}", "sequence_number": number})


def _event(kind: str, data: dict[str, Any]) -> str:
    return f"event: {kind}\ndata: {json.dumps(data, ensure_ascii=False, separators=(',', ':'))}\n\n"
