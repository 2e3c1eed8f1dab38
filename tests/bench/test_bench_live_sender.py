"""Tests what a live client counts as an answer, over real connections to a small HTTP server."""

import asyncio
import json

import pytest

from bench.live.sender import send_all, send_in_turns
from bench.sim.asks import SimJob

ANSWER = json.dumps({"usage": {"prompt_tokens": 7, "completion_tokens": 3}}).encode()
NO_TOKENS = json.dumps({"usage": {"prompt_tokens": 7, "completion_tokens": 0}}).encode()
REFUSAL = b'{"reason": "inflight_full"}'


def response(status, body, *, sent=None):
    return b"HTTP/1.1 %d -\r\ncontent-length: %d\r\nconnection: close\r\n\r\n%s" % (status, len(body), body[:sent])


def a_job(*, leaves_after_ms=None, at_ms=0.0):
    return SimJob(0, "blue", at_ms, 10, 5, 20, 3_000, leaves_after_ms=leaves_after_ms)


async def _read_request(reader):
    head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
    return json.loads(await reader.readexactly(int(head.split("content-length: ")[1].split("\r\n")[0])))


async def with_server(serve, send):
    """Run `send(port)` against a server that calls `serve(reader, writer)` for each connection."""
    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        return await send(server.sockets[0].getsockname()[1])


def sent_to(answer, job, **more):
    """Send one job to a server whose response is always `answer`, and return the job."""

    async def serve(reader, writer):
        await _read_request(reader)
        writer.write(answer)
        await writer.drain()
        writer.close()

    asyncio.run(with_server(serve, lambda port: send_all(port, [job], 0.0, **more)))
    return job


def test_a_complete_answer_is_in_time_and_has_the_lengths_that_the_server_reports():
    job = sent_to(response(200, ANSWER), a_job(leaves_after_ms=60_000))
    assert job.in_time
    assert (job.prompt, job.answer, job.gone) == (7, 3, False)


@pytest.mark.parametrize(
    "broken",
    [
        pytest.param(response(200, ANSWER, sent=-4), id="cut in its last field"),
        pytest.param(response(200, ANSWER, sent=0), id="cut after its head"),
        pytest.param(response(200, NO_TOKENS), id="without a token"),
        pytest.param(response(200, b"{}"), id="without usage"),
        pytest.param(response(500, ANSWER), id="an error"),
        pytest.param(b"", id="no response"),
    ],
)
def test_a_response_that_is_not_a_whole_answer_does_not_count(broken):
    assert not sent_to(broken, a_job()).in_time


def test_a_refusal_is_recorded_with_its_reason():
    job = sent_to(response(503, REFUSAL), a_job())
    assert (job.refusal, job.outcome, job.gone) == ("inflight_full", "", False)
    assert job.gave_up_ms is not None


def test_a_client_whose_patience_ends_closes_its_connection_and_counts_no_answer():
    job, closed = a_job(leaves_after_ms=50), asyncio.Event()

    async def serve(reader, writer):
        await _read_request(reader)
        if await reader.read() == b"":
            closed.set()
        writer.close()

    async def send(port):
        await send_all(port, [job], 0.0)
        await asyncio.wait_for(closed.wait(), 20)

    asyncio.run(with_server(serve, send))
    assert (job.gone, job.in_time, job.outcome, job.gave_up_ms) == (True, False, "", None)


def test_a_client_leaves_in_the_middle_of_an_answer_too():
    job = a_job(leaves_after_ms=50)

    async def serve(reader, writer):
        await _read_request(reader)
        writer.write(response(200, ANSWER, sent=5))
        await writer.drain()
        await reader.read()
        writer.close()

    asyncio.run(with_server(serve, lambda port: send_all(port, [job], 0.0)))
    assert job.gone
    assert not job.in_time


def test_a_request_has_the_fields_that_the_benchmark_chose():
    seen = []

    async def serve(reader, writer):
        seen.append(await _read_request(reader))
        writer.write(response(200, ANSWER))
        await writer.drain()
        writer.close()

    def fields(job):
        return {"prompt": f"job {job.number}", "max_tokens": job.max_tokens}

    asyncio.run(with_server(serve, lambda port: send_all(port, [a_job()], 0.0, fields)))
    assert seen == [{"prompt": "job 0", "max_tokens": 20}]


def test_a_closed_loop_has_never_more_requests_than_clients_and_ends_after_its_time():
    now, most = 0, 0

    async def serve(reader, writer):
        nonlocal now, most
        await _read_request(reader)
        now += 1
        most = max(most, now)
        await asyncio.sleep(0)
        now -= 1
        writer.write(response(200, ANSWER))
        await writer.drain()
        writer.close()

    jobs = [a_job() for _ in range(5_000)]
    asyncio.run(with_server(serve, lambda port: send_in_turns(port, jobs, 3, 0.2)))
    done = [job for job in jobs if job.in_time]
    assert done
    assert most <= 3
    assert all(job.attempts == 0 for job in jobs if not job.in_time)
