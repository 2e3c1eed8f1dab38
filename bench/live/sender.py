"""Sends a plan of jobs over HTTP, in an open or a closed loop, with a connection for each request.

A client whose job has `leaves_after_ms` closes its connection at that time, as a program does whose user has left.
"""

import asyncio
import json
import time
from collections.abc import Callable
from typing import Any

from bench.sim.asks import SimJob
from bench.sim.simulation import Run

_OUTCOMES = {200: "succeeded", 504: "expired"}

#: Returns the body of a job's request.
Fields = Callable[[SimJob], dict[str, Any]]


def same_words(job: SimJob) -> dict[str, Any]:
    """Return a body whose prompt repeats one word as often as the job has prompt tokens."""
    return {"prompt": "word " * job.prompt, "max_tokens": job.max_tokens, "deadline_ms": job.deadline_ms}


async def send_all(port: int, jobs: list[SimJob], seconds: float, fields: Fields = same_words) -> Run:
    """Send every job at its planned time (an open loop), and record in each job how it ended.

    Times are in ms since the start of the plan.
    """
    begin = time.monotonic()
    running = [asyncio.create_task(_one(port, job, begin, fields)) for job in jobs]
    await asyncio.wait(running, timeout=seconds + 30)
    for task in running:
        task.cancel()
    await asyncio.gather(*running, return_exceptions=True)
    return Run(jobs, [], seconds, attempts=len(jobs))


async def send_in_turns(
    port: int, jobs: list[SimJob], clients: int, seconds: float, fields: Fields = same_words
) -> Run:
    """Run a closed loop: each of `clients` clients sends the plan's next job when it has an answer.

    Times are in ms since the start of the plan.
    """
    begin, plan = time.monotonic(), iter(jobs)

    async def client() -> None:
        while (time.monotonic() - begin) < seconds:
            job = next(plan)
            job.at_ms = (time.monotonic() - begin) * 1_000
            await _one(port, job, begin, fields)

    await asyncio.gather(*(client() for _ in range(clients)))
    return Run(jobs, [], seconds, attempts=len(jobs))


async def _one(port: int, job: SimJob, begin: float, fields: Fields) -> None:
    await asyncio.sleep(max(0.0, begin + job.at_ms / 1_000 - time.monotonic()))
    job.attempts, job.sent_ms = 1, (time.monotonic() - begin) * 1_000
    try:
        async with asyncio.timeout(None if job.leaves_after_ms is None else job.leaves_after_ms / 1_000):
            status, text, first_ms = await _exchange(port, job.tenant, fields(job), begin)
    except TimeoutError:
        job.gone = True
        return
    now_ms = (time.monotonic() - begin) * 1_000
    if status in {429, 503, 0}:
        # Status 0 means that the connection failed or broke, so the client got no answer.
        job.refusal, job.gave_up_ms = str(text.get("reason", f"http_{status}")), now_ms
        return
    job.admitted_ms, job.first_token_ms = job.sent_ms, first_ms
    usage = text.get("usage") or {"prompt_tokens": job.prompt, "completion_tokens": 0}
    # Every system that is compared reports the lengths of its answers. A response without a token is not an answer.
    answered = status != 200 or usage["completion_tokens"] > 0
    job.outcome, job.ended_ms = _OUTCOMES.get(status, "failed") if answered else "failed", now_ms
    if job.outcome == "succeeded":
        # A real model ends its answers itself, so the planned lengths are replaced by the actual ones.
        job.prompt, job.answer = usage["prompt_tokens"], usage["completion_tokens"]
    job.computed_prompt, job.computed_answer = job.prompt, job.answer


async def _exchange(
    port: int, tenant: str, fields: dict[str, Any], begin: float
) -> tuple[int, dict[str, Any], float | None]:
    """Send one request. Return the status (0 if there is no whole answer), the answer, and the ms of its first byte."""
    body = json.dumps(fields).encode()
    head = (
        f"POST /v1/completions HTTP/1.1\r\nhost: 127.0.0.1:{port}\r\nx-tenant: {tenant}\r\n"
        f"content-type: application/json\r\nconnection: close\r\ncontent-length: {len(body)}\r\n\r\n"
    )
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
    except OSError:
        return 0, {"reason": "no_connection"}, None
    try:
        writer.write(head.encode() + body)
        await writer.drain()
        line = await reader.readline()
        first_ms = (time.monotonic() - begin) * 1_000
        rest = await reader.read()
    except (OSError, ValueError):
        return 0, {"reason": "cut"}, None
    finally:
        writer.close()
    words = line.split()
    status = int(words[1]) if len(words) > 1 else 0
    _, _, text = rest.partition(b"\r\n\r\n")
    try:
        answer = json.loads(text)
    except ValueError:
        # A refusal needs no body. An answer whose JSON is cut does not count as one.
        return (0, {"reason": "cut"}, None) if status == 200 else (status, {}, first_ms)
    return status, answer if isinstance(answer, dict) else {}, first_ms
