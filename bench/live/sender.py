"""An open loop over HTTP: every request goes out at its absolute moment, on a connection of its own."""

import asyncio
import json
import time
from typing import Any

from bench.sim.asks import Ask
from bench.sim.simulation import Run

_OUTCOMES = {200: "succeeded", 504: "expired"}


async def send_all(port: int, asks: list[Ask], seconds: float) -> Run:
    """Send the plan; the asks carry what became of them. Moments are ms since the first moment of the plan."""
    begin = time.monotonic()
    running = [asyncio.create_task(_one(port, ask, begin)) for ask in asks]
    await asyncio.wait(running, timeout=seconds + 30)
    for task in running:
        task.cancel()
    await asyncio.gather(*running, return_exceptions=True)
    return Run(asks, [], seconds, attempts=len(asks))


async def send_in_turns(port: int, asks: list[Ask], clients: int, seconds: float) -> Run:
    """A closed loop: so many clients that each send the plan's next when they have an answer; moments as above."""
    begin, plan = time.monotonic(), iter(asks)

    async def client() -> None:
        while (time.monotonic() - begin) < seconds:
            ask = next(plan)
            ask.at_ms = (time.monotonic() - begin) * 1_000
            await _one(port, ask, begin)

    await asyncio.gather(*(client() for _ in range(clients)))
    return Run(asks, [], seconds, attempts=len(asks))


async def _one(port: int, ask: Ask, begin: float) -> None:
    await asyncio.sleep(max(0.0, begin + ask.at_ms / 1_000 - time.monotonic()))
    ask.attempts, ask.sent_ms = 1, (time.monotonic() - begin) * 1_000
    status, text, first_ms = await _exchange(port, ask, begin)
    now_ms = (time.monotonic() - begin) * 1_000
    if status in {429, 503, 0}:
        # 0: no connection, or one that was cut: the client got no answer.
        ask.refusal, ask.gave_up_ms = str(text.get("reason", f"http_{status}")), now_ms
        return
    ask.admitted_ms, ask.first_token_ms = ask.sent_ms, first_ms
    ask.outcome, ask.ended_ms = _OUTCOMES.get(status, "failed"), now_ms
    if usage := text.get("usage"):
        # A real model ends its answers itself.
        ask.prompt, ask.answer = usage["prompt_tokens"], usage["completion_tokens"]
    ask.computed_prompt, ask.computed_answer = ask.prompt, ask.answer


async def _exchange(port: int, ask: Ask, begin: float) -> tuple[int, dict[str, Any], float | None]:
    """Status, 0 without one, the answer, and when its first byte came in ms."""
    asked = {"prompt": "word " * ask.prompt, "max_tokens": ask.max_tokens, "deadline_ms": ask.deadline_ms}
    body = json.dumps(asked).encode()
    head = (
        f"POST /v1/completions HTTP/1.1\r\nhost: 127.0.0.1:{port}\r\nx-tenant: {ask.tenant}\r\n"
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
