"""Sends requests to the upstream over HTTP and reads their answers; only this module uses aiohttp."""

import json
from collections.abc import Callable
from typing import Any, Self

import aiohttp
import structlog

from workers.upstream.answer import MAX_ANSWER_BYTES, Answer, AnswerInvalid
from workers.upstream.faults import Lost, Unreachable, UpstreamFault, error_in_stream, fault_of
from workers.upstream.request import UpstreamRequest
from workers.upstream.sse import EventDecoder, EventTooLong

log = structlog.get_logger()

#: How long a connection to the upstream may take, and the answer to a probe, in seconds.
_CONNECT_S, _PROBE_S = 10.0, 5.0
#: How long an unused connection is kept, in seconds. Some servers close theirs after 5 s, and a request that is sent at
#: that moment is lost.
_KEEP_ALIVE_S = 2.0
#: The most bytes that are read of a response which is an error.
_MAX_ERROR_BYTES = 64 << 10
_END_OF_STREAM = b"[DONE]"


class UpstreamClient:
    """The connections to one upstream. All methods run in the event loop that entered the context."""

    def __init__(self, url: str, api_key: str) -> None:
        self._url, self._api_key = url.rstrip("/"), api_key
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        headers = {"User-Agent": "penstock", "Accept-Encoding": "identity"}
        if self._api_key:
            headers["Authorization"] = f"Bearer {self._api_key}"
        self._session = aiohttp.ClientSession(
            headers=headers,
            # The engine bounds the number of requests and their times.
            connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=_KEEP_ALIVE_S),
            timeout=aiohttp.ClientTimeout(total=None, connect=_CONNECT_S),
            cookie_jar=aiohttp.DummyCookieJar(),
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._opened.close()

    @property
    def _opened(self) -> aiohttp.ClientSession:
        if self._session is None:
            raise RuntimeError("the client is used outside of its context")
        return self._session

    async def probe(self) -> bool:
        """Return whether the upstream answers. A status of 500 or more says that it is not ready."""
        timeout = aiohttp.ClientTimeout(total=_PROBE_S)
        try:
            async with self._opened.get(f"{self._url}/models", timeout=timeout, allow_redirects=False) as response:
                return response.status < 500
        except (aiohttp.ClientError, TimeoutError, OSError):
            return False

    async def run(self, request: UpstreamRequest, answer: Answer, on_received: Callable[[str | None], None]) -> None:
        """Send a request and read its answer to the end.

        `on_received` is called when the upstream has sent something: with the new text of an answer, which may be "",
        or with None if it was no part of the answer. Raises an UpstreamFault. If this is canceled, the request to the
        upstream is closed.
        """
        try:
            response = await self._send(request)
            try:
                await self._read(response, answer, on_received)
            finally:
                # This closes the connection, unless the response was read to its end.
                response.close()
        except UpstreamFault as fault:
            fault.args = (self._without_key(str(fault)),)
            raise

    async def _send(self, request: UpstreamRequest) -> aiohttp.ClientResponse:
        headers = {"Content-Type": "application/json", "Accept": "text/event-stream, application/json"}
        url = f"{self._url}/{request.path}"
        try:
            return await self._opened.post(url, data=request.body, headers=headers, allow_redirects=False)
        except aiohttp.ClientResponseError as error:
            raise Lost(f"the upstream sent no valid HTTP response: {error.message}") from error
        except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError) as error:
            log.debug("upstream.refused", error=str(error))
            raise Unreachable("the upstream cannot be reached", sent=False) from error
        except (aiohttp.ClientError, OSError) as error:
            log.debug("upstream.closed", error=str(error))
            raise Unreachable("the upstream closed the connection before it answered", sent=True) from error

    async def _read(
        self, response: aiohttp.ClientResponse, answer: Answer, on_received: Callable[[str | None], None]
    ) -> None:
        try:
            if response.status != 200:
                body = await _read_at_most(response, _MAX_ERROR_BYTES)
                raise fault_of(response.status, response.headers, body)
            if response.content_type == "text/event-stream":
                await _read_stream(response, answer, on_received)
            else:
                on_received(answer.add_whole(_parsed(await _read_at_most(response, MAX_ANSWER_BYTES))))
        except (aiohttp.ClientError, OSError) as error:
            if not answer.finish_reason:
                raise Lost("the upstream closed the connection in the middle of the answer") from error
        except (AnswerInvalid, EventTooLong) as error:
            raise Lost(str(error)) from error

    def _without_key(self, message: str) -> str:
        return message.replace(self._api_key, "***") if self._api_key else message


async def _read_stream(
    response: aiohttp.ClientResponse, answer: Answer, on_received: Callable[[str | None], None]
) -> None:
    """Read the events of a stream until it says that it is done, or ends after a finish reason."""
    decoder = EventDecoder()
    async for received in response.content.iter_any():
        if _take_events(decoder.feed(received), answer, on_received):
            return
    if not _take_events(decoder.finish(), answer, on_received) and not answer.finish_reason:
        raise AnswerInvalid("the upstream ended the stream in the middle of the answer")


def _take_events(events: list[bytes], answer: Answer, on_received: Callable[[str | None], None]) -> bool:
    """Add the events to the answer. Return whether the stream said that it is done."""
    on_received(None)
    for event in events:
        if event == _END_OF_STREAM:
            answer.finish_reason = answer.finish_reason or "stop"
            return True
        chunk = _parsed(event)
        if isinstance(chunk, dict) and (message := error_in_stream(chunk)):
            raise Lost(f"the upstream failed in the middle of the answer: {message}")
        text = answer.add_chunk(chunk)
        if text is not None:
            on_received(text)
    return False


def _parsed(data: bytes) -> Any:
    try:
        return json.loads(data)
    except (ValueError, RecursionError):
        raise AnswerInvalid("the upstream sent something that is not JSON") from None


async def _read_at_most(response: aiohttp.ClientResponse, limit: int) -> bytes:
    """Read a body. What exceeds the limit is left out, so that a longer answer is no valid JSON."""
    parts, size = [], 0
    async for part in response.content.iter_any():
        parts.append(part)
        size += len(part)
        if size > limit:
            break
    return b"".join(parts)[:limit]
