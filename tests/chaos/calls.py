"""Calls from a client process to the doors: plain HTTP with timeouts, one connection for each call."""

import http.client
import json
import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from shared.cli.sse import ServerEvent, read_events

#: Longer than the longest stop of a door, and than the door's own wait for the store.
TIMEOUT_S = 8.0


class Unreachable(Exception):
    """The door did not answer, or its answer broke off."""


@dataclass(frozen=True)
class Answer:
    """The status and the JSON body of an answer."""

    status: int
    body: dict[str, Any]

    @property
    def refusal(self) -> str | None:
        """The reason, if the answer is a yield."""
        return str(self.body["reason"]) if self.body.get("status") == "yield" else None


class Doors:
    """The doors as one tenant sees them; each call goes to a random one."""

    def __init__(self, ports: list[int], key: str, rng: random.Random) -> None:
        self._ports, self._key, self._rng = ports, key, rng

    def call(self, method: str, path: str, body: dict[str, Any] | None = None, **headers: str) -> Answer:
        """Return the answer of a door. Raises Unreachable."""
        with self._request(method, path, body, headers) as response:
            return Answer(response.status, json.loads(response.read()))

    @contextmanager
    def stream(
        self, method: str, path: str, body: dict[str, Any] | None = None, **headers: str
    ) -> Iterator[Answer | Iterator[ServerEvent]]:
        """Yield the events of a stream, or an answer that is not a stream. Reading the events raises Unreachable."""
        with self._request(method, path, body, headers) as response:
            if response.status != 200:
                yield Answer(response.status, json.loads(response.read()))
            else:
                yield read_events(line.decode() for line in response)

    @contextmanager
    def _request(
        self, method: str, path: str, body: dict[str, Any] | None, headers: dict[str, str]
    ) -> Iterator[http.client.HTTPResponse]:
        connection = http.client.HTTPConnection("127.0.0.1", self._rng.choice(self._ports), timeout=TIMEOUT_S)
        sent = {"Authorization": f"Bearer {self._key}", "Content-Type": "application/json"}
        sent |= {name.replace("_", "-"): value for name, value in headers.items()}
        try:
            connection.request(method, path, None if body is None else json.dumps(body), sent)
            yield connection.getresponse()
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise Unreachable(repr(error)) from error
        finally:
            connection.close()
