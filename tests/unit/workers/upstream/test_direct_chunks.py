"""Tests that a stream whose chunks are taken from the connection is the one that aiohttp would read."""

import asyncio
import itertools
import os
from contextlib import suppress
from functools import partial
from typing import Any

import pytest
from aiohttp import ClientPayloadError
from aiohttp.client_proto import ResponseHandler
from hypothesis import given, settings
from hypothesis import strategies as some

from tests.support.raw_upstream import OK, RawUpstream
from tests.support.upstream_scene import UpstreamScene
from workers.upstream.direct_chunks import DirectHandler, StreamReads

HEAD = OK + b"Content-Type: text/event-stream; charset=utf-8\r\nTransfer-Encoding: chunked\r\n\r\n"
#: Heads of bodies that are not taken, because they may have another form.
OTHER_HEADS = (
    OK + b"Content-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n",
    OK + b"Content-Type: text/event-stream\r\n\r\n",
    OK + b"Content-Type: text/event-stream\r\nContent-Length: 20\r\n\r\n",
    HEAD.replace(b"200 OK", b"503 Busy"),
)


class Transport(asyncio.Transport):
    """A connection that leads nowhere."""

    max_size = 0

    def is_closing(self) -> bool:
        return False

    def close(self) -> None: ...

    def resume_reading(self) -> None: ...

    def pause_reading(self) -> None: ...


async def read(kind: type[ResponseHandler], pieces: list[bytes]) -> tuple[bytes, bool]:
    """Return the body that arrives in these pieces after its head, and whether it has an error."""
    handler = kind(asyncio.get_running_loop())
    handler.connection_made(Transport())
    handler.set_response_params(read_until_eof=True)
    handler.data_received(pieces[0])
    _, content = await handler.read()
    body = [content.read_nowait()]
    if isinstance(handler, DirectHandler):
        handler.read_with(body.append)
    for piece in (b"", *pieces[1:]):
        if piece:
            handler.data_received(piece)
        body.append(b"" if content.exception() is not None else content.read_nowait())
    handler.connection_lost(None)
    return b"".join(body), not content.is_eof() or (handler.exception() or content.exception()) is not None


@some.composite
def bodies(draw: some.DrawFn) -> bytes:
    """Draw the bytes of a body: chunks in the forms that the standard has, and some that are broken."""
    body = b""
    for data in draw(some.lists(some.binary(min_size=1, max_size=20) | some.just(b"data: {}\n\n"), max_size=5)):
        size = draw(some.sampled_from([b"%x", b"%X", b"%04x", b"%x", b"%x;name=value", b"%012x"])) % len(data)
        body += size + b"\r\n" + data + b"\r\n"
    body += draw(some.sampled_from([b"0\r\n\r\n", b"0\r\n\r\n", b"0\r\nX-More: 1\r\n\r\n", b"", b"\r\n"]))
    if draw(some.integers(0, 3)) == 0:
        at = draw(some.integers(0, len(body)))
        body = body[:at] + draw(some.binary(max_size=2)) + body[at + draw(some.integers(0, 2)) :]
    return body


@given(bodies(), some.lists(some.integers(0, 120), max_size=5), some.sampled_from([HEAD, HEAD, HEAD, *OTHER_HEADS]))
@settings(max_examples=200)
def test_a_body_is_the_one_that_aiohttp_reads_however_it_arrives(body: bytes, cuts: list[int], head: bytes) -> None:
    places = [0, *sorted(min(cut, len(body)) for cut in cuts), len(body)]
    pieces = [body[start:end] for start, end in itertools.pairwise(places)]

    async def compare() -> None:
        # aiohttp does not give the head to its reader if the bytes that arrive with it are broken.
        apart = [head, *pieces]
        together = [head + pieces[0], *pieces[1:]] if head == HEAD else apart
        assert await read(DirectHandler, together) == await read(ResponseHandler, apart)

    asyncio.run(compare())


def test_chunks_are_taken_without_aiohttp_and_the_end_is_seen_by_it() -> None:
    async def scene() -> None:
        handler = DirectHandler(asyncio.get_running_loop())
        handler.connection_made(transport := Transport())
        handler.set_response_params(read_until_eof=True)
        handler.data_received(HEAD + b"5\r\nfirst\r\n")
        _, content = await handler.read()
        taken: list[bytes] = []
        handler.read_with(taken.append)
        for piece in (b"6\r\nsecond\r\n5\r\nth", b"ird\r", b"\n4", b"\r\nlast\r\n"):
            handler.data_received(piece)
        assert (b"".join(taken), content.total_bytes, content.is_eof()) == (b"firstsecondthirdlast", 0, False)
        handler.data_received(b"0\r\n\r\n")
        assert content.is_eof()
        # Before each read, asyncio allocates this much.
        assert 0 < transport.max_size < 1 << 17

    asyncio.run(scene())


def test_a_connection_that_is_lost_in_the_middle_of_a_chunk_is_an_error() -> None:
    async def scene() -> None:
        handler = DirectHandler(asyncio.get_running_loop())
        handler.connection_made(Transport())
        handler.set_response_params(read_until_eof=True)
        handler.data_received(HEAD + b"5\r\nfi")
        _, content = await handler.read()
        handler.read_with(lambda _data: None)
        handler.connection_lost(None)
        assert isinstance(content.exception(), ClientPayloadError)

    asyncio.run(scene())


@pytest.mark.parametrize("end", [b"0\r\n\r\n", b""], ids=["end", "closed"])
def test_a_stream_that_has_begun_is_read_apart_until_its_end(end: bytes) -> None:
    async def scene() -> None:
        loop, accepted = asyncio.get_running_loop(), asyncio.Queue[asyncio.StreamWriter]()
        server = await asyncio.start_server(lambda _reader, writer: accepted.put_nowait(writer), "127.0.0.1", 0)
        reads = StreamReads(loop)
        new = partial(DirectHandler, loop, reads)
        transport, handler = await loop.create_connection(new, *server.sockets[0].getsockname())
        handler.set_response_params(read_until_eof=True)
        writer = await accepted.get()
        writer.write(HEAD)
        _, content = await handler.read()
        taken = asyncio.Queue[bytes]()
        handler.read_with(taken.put_nowait)
        for number in range(6):
            writer.write(b"1\r\n%d\r\n" % number)
            assert await taken.get() == b"%d" % number
        assert not transport.is_reading()
        writer.write(end)
        if not end:
            writer.close()
        with suppress(ClientPayloadError):
            await content.read()
        assert (content.exception() is None, transport.is_reading()) == (bool(end), bool(end))
        transport.close()
        reads.close()
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()
        server.close()
        await server.wait_closed()

    asyncio.run(asyncio.wait_for(scene(), 20))


class Ready(DirectHandler):
    """A stream whose data nobody needs; `read` has the numbers of the connections that were read."""

    def __init__(self, read: list[int]) -> None:
        super().__init__(asyncio.get_running_loop())
        self.read_numbers = read

    def read_now(self, fd: int) -> None:
        os.read(fd, 99)
        self.read_numbers.append(fd)


def test_of_many_streams_that_are_ready_a_few_are_read_before_the_event_loop_goes_round() -> None:
    async def scene() -> None:
        reads, read, pipes = StreamReads(asyncio.get_running_loop()), list[int](), [os.pipe() for _ in range(20)]
        for out, into in pipes:
            os.write(into, b"ready")
            reads.add(out, Ready(read))
        in_rounds = []
        while len(read) < len(pipes):
            before = len(read)
            await asyncio.sleep(0)
            in_rounds.append(len(read) - before)
        assert (max(in_rounds) <= 10, sorted(read)) == (True, sorted(out for out, _ in pipes))
        reads.close()
        for number in (number for pipe in pipes for number in pipe):
            os.close(number)

    asyncio.run(asyncio.wait_for(scene(), 20))


@pytest.mark.parametrize(
    ("end", "outcome"),
    [
        (b"d\r\ndata: [DONE]\n\r\n1\r\n\n\r\n0\r\n\r\n", "succeeded"),
        (b"0\r\n\r\n", "attempt_failed"),
        (b"5\r\ndata: x[DONE]\n\n\r\n0\r\n\r\n", "attempt_failed"),
        (b"e\r\ndata: garbage\n\r\n1\r\n\n\r\n", "attempt_failed"),
        (b"", "attempt_failed"),
    ],
    ids=["done", "no end", "wrong size", "no JSON", "closed"],
)
def test_an_answer_in_chunks_ends_as_the_upstream_says(end: bytes, outcome: str) -> None:
    event = b'data: {"choices":[{"index":0,"delta":{"content":"a"}}]}\n\n'
    with RawUpstream() as server:
        scene = UpstreamScene(server.url)
        parts: list[Any] = [HEAD, *[b"%x\r\n%b\r\n" % (len(event), event)] * 3, end]
        server.will(*parts)
        ended = scene.end()
        scene.close()
    assert (ended.outcome, ended.text) == (outcome, "aaa")
