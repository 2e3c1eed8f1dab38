"""Tests that a stream leaves its connection to the next request, and that one that nobody asked for is read whole."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from tests.support.loop_end import end_connections, stop_accepting
from workers.upstream.answer import Answer
from workers.upstream.client import UpstreamClient
from workers.upstream.request import UpstreamRequest

FIRST = b"HTTP/1.1 200 OK\r\n"
FIELDS = b"Content-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
EVENTS = [b'data: {"choices":[{"index":0,"delta":{"content":"a"}}]}\n\n'] * 3 + [b"data: [DONE]\n\n"]


@asynccontextmanager
async def client_of_a_server(opened: list[asyncio.StreamWriter], head: bytes) -> AsyncIterator[UpstreamClient]:
    """Yield a client of a server that answers each empty request with a stream, and keeps its connections."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        opened.append(writer)
        try:
            while await reader.readuntil(b"\r\n\r\n{}"):
                writer.write(head)
                *first, last = [b"%x\r\n%b\r\n" % (len(event), event) for event in EVENTS]
                for chunk in first:
                    await asyncio.sleep(0.001)
                    writer.write(chunk)
                writer.write(last + b"0\r\n\r\n")
        except asyncio.IncompleteReadError:
            writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()
    async with UpstreamClient(f"http://{host}:{port}/v1", "") as client:
        yield client
    await stop_accepting(server)
    server.close()
    await end_connections()


async def connections_of(requests: int) -> int:
    """Return how many connections a client opens for streams, one after the other."""
    opened: list[asyncio.StreamWriter] = []
    async with client_of_a_server(opened, FIRST + FIELDS) as client:
        for _ in range(requests):
            text = Answer("chat", 16)
            await client.run(UpstreamRequest("chat/completions", "chat", b"{}", streams=False), text, lambda _: None)
            assert (text.text, text.finish_reason) == ("aaa", "stop")
    return len(opened)


def test_a_stream_that_has_ended_leaves_its_connection_to_the_next_request() -> None:
    assert asyncio.run(connections_of(5)) == 1


async def answer_to_a_question(more: bytes) -> tuple[int | str, bytes]:
    """Return what a client reads from a server that streams although it was not asked to."""
    async with client_of_a_server([], FIRST + more + FIELDS) as client:
        return await client.ask("chat/completions", {})


@pytest.mark.parametrize("more", [b"", b"Content-Type: application/json\r\n"])
def test_an_event_stream_that_nobody_reads_as_events_is_read_whole(more: bytes) -> None:
    assert asyncio.run(answer_to_a_question(more)) == (200, b"".join(EVENTS))
