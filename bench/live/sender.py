"""Sends a plan of jobs over HTTP, in an open or a closed loop, with a connection for each request."""

import asyncio
import json
import time
from typing import Any

from bench.sim.asks import SimJob
from bench.sim.simulation import Run

_OUTCOMES = {200: "succeeded", 504: "expired"}


async def send_all(port: int, jobs: list[SimJob], seconds: float) -> Run:
    """Send every job at its planned time (an open loop), and record in each job how it ended.

    Times are in ms since the start of the plan.
    """
    begin = time.monotonic()
    running = [asyncio.create_task(_one(port, job, begin)) for job in jobs]
    await asyncio.wait(running, timeout=seconds + 30)
    for task in running:
        task.cancel()
    await asyncio.gather(*running, return_exceptions=True)
    return Run(jobs, [], seconds, attempts=len(jobs))


async def send_in_turns(port: int, jobs: list[SimJob], clients: int, seconds: float) -> Run:
    """Run a closed loop: each of `clients` clients sends the plan's next job when it has an answer.

    Times are in ms since the start of the plan.
    """
    begin, plan = time.monotonic(), iter(jobs)

    async def client() -> None:
        while (time.monotonic() - begin) < seconds:
            job = next(plan)
            job.at_ms = (time.monotonic() - begin) * 1_000
            await _one(port, job, begin)

    await asyncio.gather(*(client() for _ in range(clients)))
    return Run(jobs, [], seconds, attempts=len(jobs))


async def _one(port: int, job: SimJob, begin: float) -> None:
    await asyncio.sleep(max(0.0, begin + job.at_ms / 1_000 - time.monotonic()))
    job.attempts, job.sent_ms = 1, (time.monotonic() - begin) * 1_000
    status, text, first_ms = await _exchange(port, job, begin)
    now_ms = (time.monotonic() - begin) * 1_000
    if status in {429, 503, 0}:
        # Status 0 means that the connection failed or broke, so the client got no answer.
        job.refusal, job.gave_up_ms = str(text.get("reason", f"http_{status}")), now_ms
        return
    job.admitted_ms, job.first_token_ms = job.sent_ms, first_ms
    job.outcome, job.ended_ms = _OUTCOMES.get(status, "failed"), now_ms
    if usage := text.get("usage"):
        # A real model ends its answers itself, so the planned lengths are replaced by the actual ones.
        job.prompt, job.answer = usage["prompt_tokens"], usage["completion_tokens"]
    job.computed_prompt, job.computed_answer = job.prompt, job.answer


async def _exchange(port: int, job: SimJob, begin: float) -> tuple[int, dict[str, Any], float | None]:
    """Send one request. Return the status (0 if there is none), the answer, and the ms of its first byte."""
    fields = {"prompt": "word " * job.prompt, "max_tokens": job.max_tokens, "deadline_ms": job.deadline_ms}
    body = json.dumps(fields).encode()
    head = (
        f"POST /v1/completions HTTP/1.1\r\nhost: 127.0.0.1:{port}\r\nx-tenant: {job.tenant}\r\n"
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
        answer = {}
    return status, answer if isinstance(answer, dict) else {}, first_ms
