"""B4 as a process: one bounded first-in-first-out queue with a 503 beyond, on the sim engine's timetable.

Run: `python -m bench.live.fifo PORT SLOTS BOUND PREFILL_TPS DECODE_TPS`. `POST /v1/completions` as ours takes it:
a prompt of p words and `max_tokens` t hold a slot for p / prefill + t / decode seconds. What is late is stopped
and answered 504. It has no store, no tenants and no other process: everything that it saves is in its favour.
"""

import asyncio
import json
import sys
import time
from asyncio import StreamReader, StreamWriter


class Fifo:
    """The queue. `bound`: most requests inside, waiting and running."""

    def __init__(self, slots: int, bound: int, prefill_tps: float, decode_tps: float) -> None:
        self._slots = asyncio.Semaphore(slots)  # wakes in the order of arrival
        self._bound, self._inside = bound, 0
        self._prefill_tps, self._decode_tps = prefill_tps, decode_tps

    async def serve(self, reader: StreamReader, writer: StreamWriter) -> None:
        """One request on one connection."""
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        length = next(
            (int(line.split(":")[1]) for line in head.split("\r\n") if line.lower().startswith("content-len")), 0
        )
        body = json.loads(await reader.readexactly(length)) if length else {}
        status = await self._run(body) if head.startswith("POST") else 200
        more = "retry-after-ms: 1000\r\n" if status == 503 else ""
        writer.write(f"HTTP/1.1 {status} -\r\ncontent-length: 2\r\nconnection: close\r\n{more}\r\n{{}}".encode())
        await writer.drain()
        writer.close()

    async def _run(self, body: dict[str, object]) -> int:
        if self._inside >= self._bound:
            return 503
        words, tokens = len(str(body["prompt"]).split()), int(str(body["max_tokens"]))
        late = time.monotonic() + float(str(body["deadline_ms"])) / 1_000
        self._inside += 1
        try:
            async with asyncio.timeout_at(asyncio.get_running_loop().time() + late - time.monotonic()), self._slots:
                await asyncio.sleep(words / self._prefill_tps + tokens / self._decode_tps)
        except TimeoutError:
            return 504
        finally:
            self._inside -= 1
        return 200


async def main() -> None:
    """Serve until killed."""
    port, slots, bound = (int(word) for word in sys.argv[1:4])
    fifo = Fifo(slots, bound, *(float(word) for word in sys.argv[4:6]))
    server = await asyncio.start_server(fifo.serve, "127.0.0.1", port, backlog=1_024)
    async with server:
        await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main())
