"""The frames of server-sent events, and what each API decides about a stream of them; pure functions."""

import json
from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import NamedTuple

from shared.jobs.job import JobView
from web.http.api_errors import ApiError, error_response

_encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode

#: The frame that shows that a silent stream is still open.
COMMENT = ":\n\n"


def frame(kind: str, data: object, event_id: str = "") -> str:
    """Return the frame of an event with the name `kind`. If `event_id` is "", the frame has no id."""
    id_line = f"id: {event_id}\n" if event_id else ""
    return f"{id_line}event: {kind}\n{data_frame(data)}"


def data_frame(data: object) -> str:
    """Return the frame of an event without a name. JSON escapes line ends, so the data always fits on one line."""
    return f"data: {_encode(data)}\n\n"


def quoted(text: str) -> str:
    """Return the text as it stands in the JSON of a frame."""
    return _encode(text)


class NewText(NamedTuple):
    """Text that the client has not received, the choice that it belongs to, and the answer's tokens up to its end."""

    text: str
    choice: int
    tokens: int


class StreamFormat(ABC):
    """The frames of one answer's stream in the form of one API. The methods are called in the order of the stream."""

    comment = COMMENT
    #: Whether there are frames for the end of a job that did not succeed. If not, its stream ends with an error.
    shows_failures = False
    #: How many texts grow side by side.
    choices = 1

    @abstractmethod
    def begin(self) -> Iterator[str]:
        """Yield the frames before the text."""

    def started(self) -> Iterator[str]:
        """Yield the frames for the start of an attempt."""
        yield from ()

    @abstractmethod
    def add(self, new: NewText) -> Iterator[str]:
        """Yield the frames for new text."""

    @abstractmethod
    def end(self, view: JobView) -> Iterator[str]:
        """Yield the last frames, after those of the whole text."""

    def error(self, problem: ApiError) -> str:
        """Return the last frame of a stream that stops before the end of its answer."""
        return data_frame(error_response(problem).body)
