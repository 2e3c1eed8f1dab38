"""The clients of bench/cell_capacity.py: each keeps its connection, and parses no more than it needs."""

import asyncio
import json
import re
import time
from collections import Counter
from http.client import HTTPConnection
from typing import Any

from shared.cells.ids import cell_of_id

#: The ways to get an answer.
ANSWERS = ("streamed", "polled")
TOKENS = 32
#: The time between two polls, in seconds.
_POLL_S = 0.1
_ID = re.compile(rb'"id": ?"(?:chatcmpl-)?([^"]+)"')
_LENGTH = re.compile(rb"(?i)content-length: *(\d+)")
_WAITS = {"queued", "running"}


class Client:
    """One tenant's client, which sends a job every so often."""

    def __init__(self, port: int, tenant: str, answer: str) -> None:
        self._port, self._tenant = port, tenant
        self._one_job = self._stream if answer == "streamed" else self._poll
        #: How many jobs have succeeded in each cell.
        self.answered: Counter[str] = Counter()

    @staticmethod
    def connect_plainly(port: int) -> HTTPConnection:
        """Return a connection for a single request. Raises OSError."""
        connection = HTTPConnection("127.0.0.1", port, timeout=5)
        connection.connect()
        return connection

    async def run(self, first_s: float, interval_s: float, until_s: float) -> None:
        """Send jobs until a time of perf_counter, beginning in `first_s`, and wait for the last one."""
        self._reader, self._writer = await asyncio.open_connection("127.0.0.1", self._port, limit=2**20)
        next_s = time.perf_counter() + first_s
        while next_s < until_s:
            await asyncio.sleep(max(0.0, next_s - time.perf_counter()))
            job_id = await self._one_job()
            self.answered[cell_of_id(job_id)] += 1
            next_s = max(next_s + interval_s, time.perf_counter() - interval_s)
        self._writer.close()

    async def _stream(self) -> str:
        messages = [{"role": "user", "content": "Tell me a story."}]
        self._send("POST", "/v1/chat/completions", {"stream": True, "max_tokens": TOKENS, "messages": messages})
        head = await self._reader.readuntil(b"\r\n\r\n")
        _require(b" 200 " in head, head)
        body = await self._reader.readuntil(b"0\r\n\r\n")
        _require(b"[DONE]" in body, body)
        found = _ID.search(body)
        assert found is not None, body[:200]
        return found[1].decode()

    async def _poll(self) -> str:
        self._send("POST", "/v1/jobs", {"prompt": "Tell me a story.", "max_tokens": TOKENS})
        job = await self._answer()
        while job["status"] in _WAITS:
            await asyncio.sleep(_POLL_S)
            self._send("GET", f"/v1/jobs/{job['id']}")
            job = await self._answer()
        _require(job["status"] == "succeeded", job)
        return str(job["id"])

    def _send(self, method: str, path: str, body: dict[str, Any] | None = None) -> None:
        content = b"" if body is None else json.dumps(body).encode()
        head = f"{method} {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Tenant: {self._tenant}\r\n"
        head += f"Content-Type: application/json\r\nContent-Length: {len(content)}\r\n\r\n"
        self._writer.write(head.encode() + content)

    async def _answer(self) -> dict[str, Any]:
        head = await self._reader.readuntil(b"\r\n\r\n")
        found = _LENGTH.search(head)
        assert found is not None, head
        body = await self._reader.readexactly(int(found[1]))
        _require(b" 200 " in head or b" 202 " in head, body)
        return dict(json.loads(body))


def _require(is_good: bool, seen: object) -> None:
    if not is_good:
        raise RuntimeError(f"a job was not answered: {seen!r}"[:500])
