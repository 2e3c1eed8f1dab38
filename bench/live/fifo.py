"""Baseline B4 as a process: a bounded first-in-first-out queue that answers 503 when full, over sim or a real engine.

Run: `python -m bench.live.fifo PORT SLOTS BOUND sim PREFILL_TPS DECODE_TPS`, or `… llama MODEL.gguf`. It accepts
`POST /v1/completions` as the door does. It stops requests that are late and answers them with 504. It has no store, no
tenants and no second process; the cost that it saves this way counts in its favour.
"""

import asyncio
import json
import sys
import threading
import time
from asyncio import StreamReader, StreamWriter
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from shared.jobs.job import ClaimRef
from shared.jobs.outcomes import Outcome
from shared.settings.settings import load
from workers.engine.events import Ended, Event, JobSpec
from workers.engine.factory import make_engine
from workers.engine.loop import Engine

#: Prompt and answer tokens of an answered request, or None if its deadline passed.
Usage = tuple[int, int] | None
Machine = Callable[[dict[str, Any]], Awaitable[Usage]]


class Fifo:
    """The queue. `bound` is the maximum number of requests that wait or run."""

    def __init__(self, slots: int, bound: int, machine: Machine) -> None:
        self._slots = asyncio.Semaphore(slots)  # wakes waiters in order of arrival
        self._bound, self._inside, self._machine = bound, 0, machine

    async def serve(self, reader: StreamReader, writer: StreamWriter) -> None:
        """Serve one request on one connection, then close the connection."""
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        length = next(
            (int(line.split(":")[1]) for line in head.split("\r\n") if line.lower().startswith("content-len")), 0
        )
        body = json.loads(await reader.readexactly(length)) if length else {}
        status, usage = await self._run(body) if head.startswith("POST") else (200, None)
        answer = json.dumps({"usage": {"prompt_tokens": usage[0], "completion_tokens": usage[1]}} if usage else {})
        hint = "retry-after-ms: 1000\r\n" if status == 503 else ""
        writer.write(
            f"HTTP/1.1 {status} -\r\ncontent-length: {len(answer)}\r\nconnection: close\r\n{hint}\r\n{answer}".encode()
        )
        await writer.drain()
        writer.close()

    async def _run(self, body: dict[str, Any]) -> tuple[int, Usage]:
        if self._inside >= self._bound:
            return 503, None
        self._inside += 1
        body["late_s"] = time.monotonic() + body["deadline_ms"] / 1_000
        try:
            async with asyncio.timeout(body["deadline_ms"] / 1_000), self._slots:
                usage = await self._machine(body)
        except TimeoutError:
            return 504, None
        finally:
            self._inside -= 1
        return (200, usage) if usage else (504, None)


def timed_machine(prefill_tps: float, decode_tps: float) -> Machine:
    """Return a machine on which p prompt words and `max_tokens` t take p / prefill_tps + t / decode_tps seconds."""

    async def hold(body: dict[str, Any]) -> Usage:
        words, tokens = len(body["prompt"].split()), int(body["max_tokens"])
        await asyncio.sleep(words / prefill_tps + tokens / decode_tps)
        return words, tokens

    return hold


class RealEngine:
    """Penstock's engine on its own thread, without worker and store. The engine itself stops jobs that are late."""

    def __init__(self, model: Path, slots: int) -> None:
        self._loop = asyncio.get_running_loop()
        self._waiting: dict[ClaimRef, asyncio.Future[Usage]] = {}
        settings = load({"PENSTOCK_MAX_BATCH_SIZE": str(slots)}, None)
        self._engine: Engine = make_engine(settings, self._emit, model_path=model)
        self._stop, self._count = threading.Event(), 0
        threading.Thread(target=self._engine.run, args=(self._stop,), daemon=True).start()

    async def generate(self, body: dict[str, Any]) -> Usage:
        """Run one request. If the waiting task is canceled, cancel the request in the engine."""
        self._count += 1
        key = ClaimRef(f"job{self._count}", "1")
        payload = {"prompt": body["prompt"], "max_tokens": body["max_tokens"]}
        spec = JobSpec(key, "everybody", payload, int(body["max_tokens"]), body["late_s"])
        ended: asyncio.Future[Usage] = self._loop.create_future()
        self._waiting[key] = ended
        self._engine.submit(self._engine.prepare(spec))
        try:
            return await ended
        finally:
            del self._waiting[key]
            self._engine.cancel(key)

    def _emit(self, event: Event) -> None:
        if isinstance(event, Ended):
            self._loop.call_soon_threadsafe(self._end, event)

    def _end(self, event: Ended) -> None:
        future = self._waiting.get(event.key)
        if future is not None and not future.done():
            usage = event.usage
            succeeded = event.outcome == Outcome.SUCCEEDED
            future.set_result((usage.prompt_tokens, usage.completion_tokens) if succeeded else None)


async def main() -> None:
    """Serve until the process is killed."""
    port, slots, bound = (int(word) for word in sys.argv[1:4])
    machine = (
        RealEngine(Path(sys.argv[5]), slots).generate
        if sys.argv[4] == "llama"
        else timed_machine(*(float(word) for word in sys.argv[5:7]))
    )
    server = await asyncio.start_server(Fifo(slots, bound, machine).serve, "127.0.0.1", port, backlog=1_024)
    async with server:
        await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main())
