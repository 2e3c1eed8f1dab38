"""Capture what the code under test logs, without what threads of other tests still log."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import structlog
from structlog.testing import capture_logs
from structlog.typing import EventDict


@contextmanager
def logs_of_this_thread() -> Iterator[list[EventDict]]:
    """Yield the list to which each event that this thread logs is added."""
    this_thread = threading.get_ident()

    def drop_others(_logger: object, _method: str, event: EventDict) -> EventDict:
        if threading.get_ident() != this_thread:
            raise structlog.DropEvent
        return event

    with capture_logs([drop_others]) as events:
        yield events
