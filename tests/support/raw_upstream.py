"""A server that answers each request with the bytes that a test gives: for what no HTTP library would send."""

import asyncio
import threading
from collections import deque
from typing import Self

from tests.support.loop_end import end_connections, stop_accepting

OK = b"HTTP/1.1 200 OK\r\n"
STREAM = OK + b"Content-Type: text/event-stream\r\n\r\n"


class RawUpstream:
    """Answers `GET models` and empty requests as a server does, and each other `POST` with the next queued answer.

    An answer is a list of bytes to send and of pauses in seconds. After it, the connection is closed.
    """

    def __init__(self) -> None:
        self.answers: deque[list[bytes | float]] = deque()
        #: The number of requests that were answered, and the headers of the last one.
        self.requests = 0
        self.headers = b""
        #: How many connections the client has closed before the end of the answer.
        self.closed = 0
        self.port = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: asyncio.Event | None = None
        ready = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve(ready)), daemon=True)
        self._thread.start()
        assert ready.wait(10)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        assert self._loop is not None
        assert self._stop is not None
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(10)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    def will(self, *parts: bytes | float) -> None:
        """Queue one answer."""
        self.answers.append(list(parts))

    async def _serve(self, ready: threading.Event) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        server = await asyncio.start_server(self._connected, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        ready.set()
        await self._stop.wait()
        await stop_accepting(server)
        server.close()
        await end_connections()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            headers = await reader.readuntil(b"\r\n\r\n")
            if headers.startswith(b"GET"):
                writer.write(OK + b"Content-Length: 2\r\nConnection: close\r\n\r\n{}")
                return
            self.headers = headers
            size = next(
                int(line[15:]) for line in headers.split(b"\r\n") if line.lower().startswith(b"content-length:")
            )
            if await reader.readexactly(size) == b"{}":
                writer.write(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
                return
            self.requests += 1
            for part in self.answers.popleft():
                await self._send(part, reader, writer)
        except (ConnectionError, asyncio.IncompleteReadError):
            self.closed += 1
        finally:
            writer.close()

    async def _send(self, part: bytes | float, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if isinstance(part, bytes):
            writer.write(part)
            await writer.drain()
            return
        try:
            # The client sends nothing more, so that what is read is the end of its connection.
            await asyncio.wait_for(reader.read(1), part)
        except TimeoutError:
            return
        raise ConnectionResetError
