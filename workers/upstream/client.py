"""Sends requests to the upstream over HTTP and reads their answers, with aiohttp."""

import asyncio
import select
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any, Self

import aiohttp

from shared.log import get_logger
from shared.proxies import proxy_for
from workers.upstream.chunk_reader import ChunkReader, Reply, parsed
from workers.upstream.dialect import refused_field
from workers.upstream.direct_chunks import DirectHandler, StreamReads
from workers.upstream.faults import (
    Broken,
    Lost,
    NoEmbeddings,
    Rejected,
    Unreachable,
    UpstreamFault,
    fault_of,
    makes_no_embeddings,
)
from workers.upstream.pieces import AnswerInvalid, ChoicesMissing
from workers.upstream.request import UpstreamRequest
from workers.upstream.sse import EventDecoder, EventTooLong
from workers.upstream.vectors import Vectors

log = get_logger()

#: How long a connection to the upstream may take, and the answer to a probe, in seconds.
_CONNECT_S, _PROBE_S = 10.0, 5.0
#: The most bytes of the response to a probe.
_MAX_ASKED_BYTES = 1 << 20
#: How long an unused connection is kept, in seconds. Some servers close theirs after 5 s, and a request that is sent at
#: that moment is lost.
_KEEP_ALIVE_S = 2.0
#: The most bytes that are read of a response which is an error, and the longest time that it is read, in seconds.
_MAX_ERROR_BYTES, _ERROR_S = 64 << 10, 0.5
#: How long the rest of a stream is awaited after the answer has said why it ended, in seconds: usage comes after that.
_REST_S = 2.0
_END_OF_STREAM = b"[DONE]"


class _Connector(aiohttp.TCPConnector):
    """Makes connections whose streams are not parsed by aiohttp."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        #: None on a platform without epoll.
        self.reads = StreamReads(self._loop) if hasattr(select, "epoll") else None
        # aiohttp has no other way to name the class of its protocol.
        new = partial(DirectHandler, loop=self._loop, reads=self.reads)
        self._factory = new  # type: ignore[assignment]  # a partial is invariant


class _StreamDone(Exception):
    """The stream said that it is done. Nothing that follows is read."""


class UpstreamClient:
    """The connections to one upstream. All methods run in the event loop that entered the context."""

    def __init__(self, url: str, api_key: str) -> None:
        """Create a client. Raises ConfigError if the environment names a proxy for the URL that cannot be used."""
        self._url, self._api_key, self._proxy = url.rstrip("/"), api_key, proxy_for(url)
        self._session: aiohttp.ClientSession | None = None
        self._reads: StreamReads | None = None
        #: The added fields that the server has refused in requests that it then took without them.
        self._refused: frozenset[str] = frozenset()

    async def __aenter__(self) -> Self:
        headers = {"User-Agent": "penstock", "Accept-Encoding": "identity"}
        if self._api_key:
            headers["Authorization"] = f"Bearer {self._api_key}"
        connector = _Connector(limit=0, keepalive_timeout=_KEEP_ALIVE_S)
        self._reads = connector.reads
        self._session = aiohttp.ClientSession(
            headers=headers,
            # The engine bounds the number of requests and their times.
            connector=connector,
            timeout=aiohttp.ClientTimeout(total=None, connect=_CONNECT_S),
            cookie_jar=aiohttp.DummyCookieJar(),
            proxy=self._proxy,
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._opened.close()
        if self._reads is not None:
            self._reads.close()

    @property
    def _opened(self) -> aiohttp.ClientSession:
        if self._session is None:
            raise RuntimeError("the client is used outside of its context")
        return self._session

    async def ask(self, path: str, body: dict[str, Any] | None = None) -> tuple[int | str, bytes]:
        """Send a probe, a GET if `body` is None. Return the status, or why there is no response, and its body."""
        timeout, method = aiohttp.ClientTimeout(total=_PROBE_S), "GET" if body is None else "POST"
        url = f"{self._url}/{path}"
        try:
            async with self._opened.request(method, url, json=body, timeout=timeout, allow_redirects=False) as response:
                return response.status, await _read_at_most(response, _MAX_ASKED_BYTES)
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            return f"{type(error).__name__}: {error}", b""

    async def run(self, request: UpstreamRequest, answer: Reply, on_received: Callable[[str | None], None]) -> None:
        """Send a request and read its answer to the end.

        `on_received` is called when the upstream has sent an event: with the new text of an answer, which may be "", or
        with None if it was no part of the answer. Raises an UpstreamFault. If this is canceled, the request to the
        upstream is closed.

        If the upstream refuses a field that the worker has added, the request is sent again without it, at once.
        """
        left_out: frozenset[str] = frozenset()
        first: Rejected | None = None
        while True:
            refused = self._refused | left_out
            try:
                await self._exchange(request, refused, answer, on_received)
            except Rejected as fault:
                first = first or fault
                name = refused_field(fault, request.added(refused))
                if name is None or answer.has_begun:
                    raise first from None
                left_out |= {name}
            else:
                self._refused |= left_out
                return

    async def _exchange(
        self,
        request: UpstreamRequest,
        refused: frozenset[str],
        answer: Reply,
        on_received: Callable[[str | None], None],
    ) -> None:
        response = await self._send(request.path, request.body(refused), request.headers)
        try:
            with _ends_with_connection(response):
                await self._read(response, answer, on_received)
        except ChoicesMissing as error:
            # Another attempt would get no more of them, and the client must not take them for all.
            raise Rejected(str(error), param=request.multiplied_by) from error
        finally:
            # This closes the connection, unless the response was read to its end.
            response.close()

    async def _send(self, path: str, body: bytes, more: Mapping[str, str]) -> aiohttp.ClientResponse:
        headers = {**more, "Content-Type": "application/json", "Accept": "text/event-stream, application/json"}
        url = f"{self._url}/{path}"
        try:
            return await self._opened.post(url, data=body, headers=headers, allow_redirects=False)
        except aiohttp.ClientResponseError as error:
            raise Lost("the upstream sent no valid HTTP response") from error
        except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError) as error:
            log.debug("upstream.refused", error=str(error))
            raise Unreachable("the upstream cannot be reached", sent=False) from error
        except (aiohttp.ClientError, OSError) as error:
            log.debug("upstream.closed", error=str(error))
            raise Unreachable("the upstream closed the connection before it answered", sent=True) from error

    async def _read(
        self, response: aiohttp.ClientResponse, answer: Reply, on_received: Callable[[str | None], None]
    ) -> None:
        if response.status != 200:
            body = await _error_body(response)
            if isinstance(answer, Vectors) and makes_no_embeddings(response.status, body):
                raise NoEmbeddings(response.status)
            raise fault_of(response.status, response.headers, body, key=self._api_key)
        try:
            if response.content_type == "text/event-stream":
                await self._read_stream(response, answer, on_received)
            else:
                # Parsing the vectors of many texts takes long, and would delay all other answers.
                value = await asyncio.to_thread(parsed, await _read_at_most(response, answer.max_bytes))
                ChunkReader(answer, self._api_key).raise_error(value)
                on_received(answer.add_whole(value))
        except (aiohttp.ClientError, OSError) as error:
            if not answer.finish_reason:
                message = "the upstream closed the connection in the middle of the answer"
                raise (Broken if answer.has_begun else Lost)(message) from error
        except (AnswerInvalid, EventTooLong) as error:
            if not answer.finish_reason:
                raise Lost(str(error)) from error
        except UpstreamFault:
            # After its finish reason, an answer is complete.
            if not answer.finish_reason:
                raise

    async def _read_stream(
        self, response: aiohttp.ClientResponse, answer: Reply, on_received: Callable[[str | None], None]
    ) -> None:
        """Read the events of a stream until it says that it is done, or ends after a finish reason."""
        rest = asyncio.timeout(None)
        events = _EventStream(response.content, ChunkReader(answer, self._api_key), answer, on_received, rest)
        try:
            async with rest:
                if response.connection is not None and isinstance(response.connection.protocol, DirectHandler):
                    response.connection.protocol.read_with(events.take_at_once)
                async for received in response.content.iter_any():
                    events.take(received)
            events.finish()
        except _StreamDone:
            return
        except TimeoutError:
            if not rest.expired():
                raise
            return
        if not answer.finish_reason:
            raise (Broken if answer.has_begun else Lost)("the upstream ended the stream in the middle of the answer")


class _EventStream:
    """Adds the events of a stream to its answer, and begins the time `rest` when the answer is complete."""

    def __init__(
        self,
        content: aiohttp.StreamReader,
        reader: ChunkReader,
        answer: Reply,
        on_received: Callable[[str | None], None],
        rest: asyncio.Timeout,
    ) -> None:
        self._content, self._reader, self._answer = content, reader, answer
        self._on_received, self._rest = on_received, rest
        self._decoder = EventDecoder()
        #: Whether the stream said that it is done.
        self._is_done = False

    def take(self, received: bytes) -> None:
        """Add the events that end in these bytes. Raises _StreamDone if nothing more belongs to the answer."""
        if self._is_done:
            raise _StreamDone
        text = self._reader.text_of_event(received) if self._decoder.is_empty else ""
        if text:
            self._note(self._reader.add_text(text))
        else:
            self._add(self._decoder.feed(received))
        if self._answer.finish_reason and self._rest.when() is None:
            self._rest.reschedule(asyncio.get_running_loop().time() + _REST_S)

    def take_at_once(self, received: bytes) -> None:
        """Do the same in a callback of the event loop. The task that waits for the content raises the exception."""
        if self._is_done or self._content.exception() is not None:
            return
        try:
            self.take(received)
        except _StreamDone:
            # The end of the body may have arrived too. With that, and without an exception, the connection is kept.
            self._is_done = True
            asyncio.get_running_loop().call_soon(self._end_content)
        except Exception as error:  # noqa: BLE001 - raised by the task
            self._content.set_exception(error)

    def _end_content(self) -> None:
        if not self._content.is_eof() and self._content.exception() is None:
            self._content.set_exception(_StreamDone())

    def finish(self) -> None:
        if not self._is_done:
            self._add(self._decoder.finish())

    def _add(self, events: list[bytes]) -> None:
        for event in events:
            if event.strip() == _END_OF_STREAM:
                self._answer.end("stop")
                raise _StreamDone
            self._note(self._reader.add(event))

    def _note(self, new: str | None) -> None:
        self._on_received(new)
        if self._answer.is_too_long:
            self._answer.end("length")
            raise _StreamDone


@contextmanager
def _ends_with_connection(response: aiohttp.ClientResponse) -> Iterator[None]:
    """Make reading the body fail when the connection is closed before its end.

    After broken chunk framing, aiohttp closes the connection, and its reader waits for ever.
    """
    protocol = None if response.connection is None else response.connection.protocol
    closed, content = None if protocol is None else protocol.closed, response.content

    def fail(ended: asyncio.Future[None]) -> None:
        if not ended.cancelled():
            ended.exception()
        if not content.is_eof() and content.exception() is None:
            content.set_exception(aiohttp.ClientPayloadError("the connection was closed before the end of the body"))

    if closed is not None:
        closed.add_done_callback(fail)
    try:
        yield
    finally:
        if closed is not None:
            closed.remove_done_callback(fail)


async def _error_body(response: aiohttp.ClientResponse) -> bytes:
    """Return the body of a response whose status says enough: what cannot be read of it, or not soon, is left out."""
    try:
        async with asyncio.timeout(_ERROR_S):
            return await _read_at_most(response, _MAX_ERROR_BYTES)
    except (aiohttp.ClientError, OSError, TimeoutError):
        return b""


async def _read_at_most(response: aiohttp.ClientResponse, limit: int) -> bytes:
    """Read a body. It is cut at the limit, so that a longer answer is not valid JSON."""
    if response.connection is not None and isinstance(response.connection.protocol, DirectHandler):
        response.connection.protocol.read_whole()
    parts, size = [], 0
    async for part in response.content.iter_any():
        parts.append(part)
        size += len(part)
        if size > limit:
            break
    return b"".join(parts)[:limit]
