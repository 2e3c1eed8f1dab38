"""The clients of bench/relay.py, which cost little: they count tokens in the bytes that arrive, and parse nothing."""

import asyncio
import itertools
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

#: The mark that each token has once; see bench/relay_upstream.py.
_MARK, _END = b"~", b"[DONE]"


class Follower(asyncio.Protocol):
    """One request on a connection of its own, and the times at which parts of its answer arrived."""

    def __init__(self, request: bytes, *, streams: bool) -> None:
        """Create a client that sends this request as soon as it is connected."""
        self._request, self.streams = request, streams
        self._tail = b""
        self.began_s = 0.0
        #: The time of each arrival that had tokens, and the number of these tokens.
        self.arrivals: list[tuple[float, int]] = []
        self.status = 0
        loop = asyncio.get_running_loop()
        self.has_begun: asyncio.Future[None] = loop.create_future()
        self.has_closed: asyncio.Future[None] = loop.create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.began_s = time.perf_counter()
        transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        now_s = time.perf_counter()
        if not self.status:
            self.status = int(data.split(b" ", 2)[1])
        tokens = data.count(_MARK)
        if tokens:
            self.arrivals.append((now_s, tokens))
            if not self.has_begun.done():
                self.has_begun.set_result(None)
        self._tail = (self._tail + data)[-400:]

    def connection_lost(self, _error: Exception | None) -> None:
        for future in (self.has_begun, self.has_closed):
            if not future.done():
                future.set_result(None)

    @property
    def end(self) -> bytes:
        """The last bytes of the answer."""
        return self._tail

    @property
    def is_complete(self) -> bool:
        """Whether the whole answer has arrived: all of a stream, or any text of another answer."""
        return self.status == 200 and bool(self.arrivals) and (_END in self._tail or not self.streams)

    @property
    def tokens(self) -> int:
        return sum(tokens for _, tokens in self.arrivals)

    @property
    def first_s(self) -> float:
        """How long the first token took, from the connection on."""
        return self.arrivals[0][0] - self.began_s

    def tokens_between(self, begin_s: float, end_s: float) -> int:
        return sum(tokens for at_s, tokens in self.arrivals if begin_s <= at_s < end_s)

    def gaps_between(self, begin_s: float, end_s: float) -> list[float]:
        """Return the times between arrivals. Tokens that arrive together have no time between them, and count not."""
        times = [at_s for at_s, _ in self.arrivals if begin_s <= at_s < end_s]
        return [after - before for before, after in itertools.pairwise(times)]


@dataclass(frozen=True)
class Target:
    """The server whose answers are followed: the upstream itself, or a door before it."""

    port: int
    model: str

    async def open(self, max_tokens: int, *, stream: bool = True) -> Follower:
        """Send a request on a new connection."""
        fields = {"model": self.model, "max_tokens": max_tokens, "stream": stream}
        body = json.dumps(fields | {"messages": [{"role": "user", "content": "Tell me a story."}]}).encode()
        head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1:{self.port}\r\nConnection: close\r\n"
        head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        loop = asyncio.get_running_loop()
        request = head.encode() + body
        new = partial(Follower, request, streams=stream)
        _, follower = await loop.create_connection(new, "127.0.0.1", self.port)
        return follower


async def post(port: int, path: str, fields: dict[str, Any] | None = None) -> None:
    """Send a request to the upstream itself, and wait for its answer."""
    await _ask(port, f"POST {path}", json.dumps(fields or {}).encode())


async def get(port: int, path: str) -> Any:
    """Return the JSON of the upstream's answer."""
    return json.loads(await _ask(port, f"GET {path}", b""))


async def _ask(port: int, line: str, body: bytes) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    head = f"{line} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\nContent-Type: application/json\r\n"
    writer.write(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
    answer = await reader.read()
    writer.close()
    return answer.partition(b"\r\n\r\n")[2]


def percentile(values: Sequence[float], percent: float) -> float:
    """Return a percentile of the values, and 0 without any."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * percent / 100))] if ordered else 0.0
