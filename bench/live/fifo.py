"""B4 as a process: one bounded first-in-first-out queue with a 503 beyond, over the timetable of sim or a real engine.

Run: `python -m bench.live.fifo PORT SLOTS BOUND sim PREFILL_TPS DECODE_TPS`, or `… llama MODEL.gguf`. It takes
`POST /v1/completions` as ours does. What is late is stopped and answered 504. It has no store, no tenants and no other
process: everything that it saves is in its favour.
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

from shared.jobs.outcomes import Outcome
from shared.settings.settings import load
from workers.engine.events import Ended, Event, JobSpec
from workers.engine.factory import make_engine
from workers.engine.loop import Engine

#: Prompt and answer tokens of a request that was answered; None when its time was over.
Usage = tuple[int, int] | None
Machine = Callable[[dict[str, Any]], Awaitable[Usage]]


class Fifo:
    """The queue. `bound`: most requests inside, waiting and running."""

    def __init__(self, slots: int, bound: int, machine: Machine) -> None:
        self._slots = asyncio.Semaphore(slots)  # wakes in the order of arrival
        self._bound, self._inside, self._machine = bound, 0, machine

    async def serve(self, reader: StreamReader, writer: StreamWriter) -> None:
        """One request on one connection."""
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        length = next(
            (int(line.split(":")[1]) for line in head.split("\r\n") if line.lower().startswith("content-len")), 0
        )
        body = json.loads(await reader.readexactly(length)) if length else {}
        status, usage = await self._run(body) if head.startswith("POST") else (200, None)
        told = json.dumps({"usage": {"prompt_tokens": usage[0], "completion_tokens": usage[1]}} if usage else {})
        more = "retry-after-ms: 1000\r\n" if status == 503 else ""
        writer.write(
            f"HTTP/1.1 {status} -\r\ncontent-length: {len(told)}\r\nconnection: close\r\n{more}\r\n{told}".encode()
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


def timetable(prefill_tps: float, decode_tps: float) -> Machine:
    """A prompt of p words and `max_tokens` t hold a slot for p / prefill + t / decode seconds."""

    async def hold(body: dict[str, Any]) -> Usage:
        words, tokens = len(body["prompt"].split()), int(body["max_tokens"])
        await asyncio.sleep(words / prefill_tps + tokens / decode_tps)
        return words, tokens

    return hold


class RealEngine:
    """Our engine on a thread of its own, without worker and store; it stops what is late itself."""

    def __init__(self, model: Path, slots: int) -> None:
        self._loop = asyncio.get_running_loop()
        self._waiting: dict[str, asyncio.Future[Usage]] = {}
        settings = load({"PENSTOCK_MAX_BATCH_SIZE": str(slots)}, None)
        self._engine: Engine = make_engine(settings, self._emit, model_path=model)
        self._stop, self._count = threading.Event(), 0
        threading.Thread(target=self._engine.run, args=(self._stop,), daemon=True).start()

    async def generate(self, body: dict[str, Any]) -> Usage:
        """One request; canceled with whoever waits for it."""
        self._count += 1
        key = f"job{self._count}:1"
        payload = {"prompt": body["prompt"], "max_tokens": body["max_tokens"]}
        spec = JobSpec(key, "everybody", payload, int(body["max_tokens"]), body["late_s"])
        self._waiting[key] = ended = self._loop.create_future()
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
        waits = self._waiting.get(event.key)
        if waits is not None and not waits.done():
            usage = event.usage
            whole = event.outcome == Outcome.SUCCEEDED
            waits.set_result((usage.prompt_tokens, usage.completion_tokens) if whole else None)


async def main() -> None:
    """Serve until killed."""
    port, slots, bound = (int(word) for word in sys.argv[1:4])
    machine = (
        RealEngine(Path(sys.argv[5]), slots).generate
        if sys.argv[4] == "llama"
        else timetable(*(float(word) for word in sys.argv[5:7]))
    )
    server = await asyncio.start_server(Fifo(slots, bound, machine).serve, "127.0.0.1", port, backlog=1_024)
    async with server:
        await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main())
