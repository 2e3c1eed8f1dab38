"""Presses the buttons of the console and reads its streams, through Flask's test client."""

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import redis
from flask.testing import FlaskClient
from werkzeug.test import TestResponse

from shared.store import keys
from web.console.feed import ConsoleFeed, ConsoleFeeds
from web.console.guard import TOKEN_HEADER
from web.runtime.context import DoorContext

#: If a stream has not shown the expected text within this many frames, about one a second, it never will.
_MOST_FRAMES = 40
#: A name that runs code where a page treats it as markup.
ATTACK = "<script>alert(1)</script>"


def token_of(page: str) -> str:
    found = re.search(r'"X-Console-Token": "([^"]+)"', page)
    assert found is not None, page
    return found[1]


def press(visitor: FlaskClient, button: str, headers: dict[str, str] | None = None, **fields: str) -> TestResponse:
    """Press a button of a page that was just loaded."""
    page = visitor.get("/console", headers=headers).text
    return visitor.post(f"/console/{button}", data=fields, headers=(headers or {}) | {TOKEN_HEADER: token_of(page)})


def feed_of(visitor: FlaskClient) -> ConsoleFeed:
    feeds: ConsoleFeeds = visitor.application.extensions["penstock_console"]
    context: DoorContext = visitor.application.extensions["penstock"]
    return feeds.of(context)


class Viewer:
    """An open stream. Each call of `read_until` continues reading where the last one ended."""

    def __init__(self, visitor: FlaskClient, path: str = "/console/live") -> None:
        self.response = visitor.get(path)
        assert self.response.status_code == 200, self.response.text
        self._frames = iter(self.response.response)
        self.read = ""

    def read_until(self, text: str) -> str:
        for _ in range(_MOST_FRAMES):
            if text in self.read:
                return self.read
            part = next(self._frames)
            self.read += part.decode() if isinstance(part, bytes) else part
        raise AssertionError(f"{text!r} is not in {self.read}")

    def has_ended_after(self, frames: int) -> bool:
        """Read at most `frames` frames; return whether the stream has ended by then."""
        return any(next(self._frames, None) is None for _ in range(frames))

    def close(self) -> None:
        self.response.close()


#: Opens the stream of a path, that of the console by default.
Look = Callable[..., Viewer]


@contextmanager
def streams(visitor: FlaskClient) -> Iterator[Look]:
    """Give a function that opens streams, and close them afterwards."""
    opened: list[Viewer] = []

    def open_stream(path: str = "/console/live") -> Viewer:
        opened.append(Viewer(visitor, path))
        return opened[-1]

    yield open_stream
    for viewer in opened:
        viewer.close()


def add_tenants(client: redis.Redis, number: int) -> None:
    """Add `number` tenants that have never had a job: t000, t001, …"""
    with client.pipeline() as pipe:
        for name in (f"t{place:03}" for place in range(number)):
            pipe.hset(keys.tenant(name), "policy", "1")
            pipe.zadd(keys.tenants(), {name: 0})
        pipe.execute()
