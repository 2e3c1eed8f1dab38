"""Measures a batch beside interactive tenants: its rate, and what it costs them in time to the first token.

python -m bench.batches [--lines 10000] [--seconds 120] [--folder FOLDER]

Three tenants send streamed requests at fixed random times, first alone and then beside a batch. Then the door's
processes are killed, and after them the worker, while the batch runs; at its end each line must be in one of its two
files exactly once. The engine is `sim`, so the figures are those of the queue.

With --folder, an interrupted run continues: the folder keeps the store and the measurements so far.
"""

import argparse
import asyncio
import json
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import psutil

from bench.common import environment, print_environment, write_results
from bench.engine_stack import free_port
from bench.live.stack import served_process

SEED = 11
SLOTS, PREFILL_TPS, DECODE_TPS = 16, 2_000.0, 20.0
TENANTS, ANSWER_TOKENS, LINE_TOKENS = ("blue", "green", "red"), 20, 20
#: The interactive requests use this part of the slots on average.
LOAD = 0.5
#: An answer counts as in time if it is whole after this many seconds.
IN_TIME_S = 10.0
ENDED = {"completed", "failed", "expired", "cancelled"}
#: The files of a run that can be resumed.
FIGURES = "figures.json"


def plan(seconds: float, seed: int = SEED) -> list[tuple[float, str]]:
    """Return when which tenant sends a request: a Poisson process that uses LOAD of the slots."""
    per_s = LOAD * SLOTS / (ANSWER_TOKENS / DECODE_TPS)
    rng, sends, at_s = np.random.default_rng(seed), list[tuple[float, str]](), 0.0
    while (at_s := at_s + float(rng.exponential(1 / per_s))) < seconds:
        sends.append((at_s, TENANTS[int(rng.integers(len(TENANTS)))]))
    return sends


def a_line(number: int) -> str:
    """Return one request of the batch."""
    body = {"prompt": f"line {number}", "max_tokens": LINE_TOKENS}
    line = {"custom_id": f"{number}", "method": "POST", "url": "/v1/completions", "body": body}
    return json.dumps(line) + "\n"


async def interactive(url: str, seconds: float) -> dict[str, Any]:
    """Send the planned requests, and return the figures of the times to the first token and of successes."""
    begin_s, first_ms, fates = time.monotonic(), list[float](), Counter[str]()
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=100)
    async with httpx.AsyncClient(base_url=url, timeout=60, limits=limits) as client:

        async def send(at_s: float, tenant: str) -> None:
            await asyncio.sleep(max(0.0, begin_s + at_s - time.monotonic()))
            sent_s, first_s = time.monotonic(), None
            body = {"prompt": "Once upon a time", "max_tokens": ANSWER_TOKENS, "stream": True}
            try:
                async with client.stream("POST", "/v1/completions", json=body, headers={"X-Tenant": tenant}) as answer:
                    async for line in answer.aiter_lines():
                        first_s = first_s or (time.monotonic() if line.startswith("data: {") else None)
                    status = answer.status_code
            except httpx.HTTPError as error:
                fates[type(error).__name__] += 1
                return
            is_in_time = status == 200 and first_s is not None and time.monotonic() - sent_s <= IN_TIME_S
            fates["in time" if is_in_time else f"late or {status}"] += 1
            if first_s is not None and status == 200:
                first_ms.append(1_000 * (first_s - sent_s))

        await asyncio.gather(*(send(at_s, tenant) for at_s, tenant in plan(seconds)))
    return {
        "requests": sum(fates.values()),
        "success": fates["in time"] / max(1, sum(fates.values())),
        "first_token_p50_ms": statistics.median(first_ms),
        "first_token_p99_ms": float(np.percentile(first_ms, 99)),
        "fates": dict(fates),
    }


class Run:
    """One measurement, whose parts are stored when they are complete."""

    def __init__(self, folder: Path, lines: int, seconds: float) -> None:
        self._path, self._lines, self._seconds = folder / FIGURES, lines, seconds
        self.kept: dict[str, Any] = json.loads(self._path.read_text()) if self._path.exists() else {}

    def keep(self, name: str, value: Any) -> None:
        """Store a part."""
        self.kept[name] = value
        draft = self._path.with_suffix(".part")
        draft.write_text(json.dumps(self.kept, indent=1))
        draft.replace(self._path)

    def measure(self, url: str, parent: psutil.Process) -> None:
        """Measure what is not measured yet."""
        if "alone" not in self.kept:
            self.keep("alone", asyncio.run(interactive(url, self._seconds)))
        with httpx.Client(base_url=url, timeout=60, headers={"X-Tenant": "batch"}) as client:
            if "file" not in self.kept:
                self.keep("file", self._upload(client))
            if "batch" not in self.kept:
                self.keep("batch", self._begin(client))
            if "beside" not in self.kept:
                before, began_s = self._answered(client), time.monotonic()
                figures = asyncio.run(interactive(url, self._seconds))
                answered, rate_s = self._answered(client) - before, time.monotonic() - began_s
                self.keep("beside", figures | {"lines_per_s": answered / rate_s})
            for which in ("door", "worker"):
                if f"killed {which}" not in self.kept:
                    self.keep(f"killed {which}", self._kill(client, parent, which))
            self.keep("end", self._end(client))

    def _upload(self, client: httpx.Client) -> str:
        content = "".join(a_line(number) for number in range(self._lines)).encode()
        file = client.post("/v1/files", files={"file": ("lines.jsonl", content)}, data={"purpose": "batch"})
        return str(file.json()["id"])

    def _begin(self, client: httpx.Client) -> str:
        body = {"input_file_id": self.kept["file"], "endpoint": "/v1/completions", "completion_window": "24h"}
        # An interrupted run that creates its batch again finds the same one.
        key = {"Idempotency-Key": f"bench-{self.kept['file']}"}
        return str(client.post("/v1/batches", json=body, headers=key).json()["id"])

    def _batch(self, client: httpx.Client) -> dict[str, Any]:
        until_s = time.monotonic() + 120
        while True:
            try:
                answer = client.get(f"/v1/batches/{self.kept['batch']}")
                if answer.status_code == 200:
                    return dict(answer.json())
            except httpx.HTTPError:
                pass
            if time.monotonic() > until_s:
                raise RuntimeError("the door does not answer")
            time.sleep(0.2)

    def _answered(self, client: httpx.Client) -> int:
        counts = self._batch(client)["request_counts"]
        return int(counts["completed"]) + int(counts["failed"])

    def _kill(self, client: httpx.Client, parent: psutil.Process, which: str) -> dict[str, Any]:
        """Kill the door's processes, or the worker; return after how many lines, and how long no line was answered."""
        before = self._answered(client)
        if before >= self._lines:
            return {"after_lines": before, "why_not": "the batch had ended"}
        module, killed = "web" if which == "door" else "workers", 0
        for process in parent.children(recursive=True):
            # The parent of the door's processes lives on, and starts others in their place.
            if module in process.cmdline() and (which == "worker" or process.parent() != parent):
                process.kill()
                killed += 1
        if not killed:
            raise RuntimeError(f"no process of the {which} was found")
        killed_s = time.monotonic()
        while self._answered(client) == before:
            time.sleep(0.1)
        return {"after_lines": before, "processes": killed, "seconds_without_an_answer": time.monotonic() - killed_s}

    def _end(self, client: httpx.Client) -> dict[str, Any]:
        """Wait for the end of the batch, and count in which files its lines are."""
        while (batch := self._batch(client))["status"] not in ENDED:
            time.sleep(1)
        found = Counter[str]()
        for file_id in (batch["output_file_id"], batch["error_file_id"]):
            if file_id:
                for line in client.get(f"/v1/files/{file_id}/content").text.splitlines():
                    found[json.loads(line)["custom_id"]] += 1
        expected = {f"{number}" for number in range(self._lines)}
        return {
            "status": batch["status"],
            "request_counts": batch["request_counts"],
            "seconds": batch["finalizing_at"] - batch["created_at"],
            "lines_missing": len(expected - found.keys()),
            "lines_more_than_once": sum(times > 1 for times in found.values()),
        }


@contextmanager
def a_folder(path: Path | None) -> Iterator[Path]:
    """Yield a folder for the run: a temporary one if none is named."""
    if path is None:
        with tempfile.TemporaryDirectory() as folder:
            yield Path(folder)
    else:
        path.mkdir(parents=True, exist_ok=True)
        yield path


def main() -> None:
    """Print the environment, measure, print the figures and write them."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--lines", type=int, default=10_000)
    options.add_argument("--seconds", type=float, default=120.0, help="how long requests are sent, in each part")
    options.add_argument("--folder", type=Path)
    options.add_argument("--write", action="store_true", help="write the figures to bench/results")
    chosen = options.parse_args()
    scale = {"slots": SLOTS, "prefill_tps": PREFILL_TPS, "decode_tps": DECODE_TPS, "load": LOAD}
    facts = environment(SEED) | {"lines": chosen.lines, "seconds": chosen.seconds, "scale": scale}
    print_environment(facts)
    environ = {
        "PENSTOCK_MAX_BATCH_SIZE": str(SLOTS),
        "PENSTOCK_SIM_PREFILL_TPS": str(PREFILL_TPS),
        "PENSTOCK_SIM_DECODE_TPS": str(DECODE_TPS),
    }
    port = free_port()
    with a_folder(chosen.folder) as folder:
        run = Run(folder, chosen.lines, chosen.seconds)
        command = ["shared.cli", "up", "--engine", "sim", "--port", str(port), "--state-dir", str(folder / "state")]
        with served_process(command, environ, port) as process:
            run.measure(f"http://127.0.0.1:{port}", psutil.Process(process.pid))
    for name, value in run.kept.items():
        print(f"{name:15} {value}")
    added_ms = run.kept["beside"]["first_token_p99_ms"] - run.kept["alone"]["first_token_p99_ms"]
    print(f"the batch adds {added_ms:.0f} ms to the 99th percentile; two steps take {2_000 / DECODE_TPS:.0f} ms")
    if chosen.write:
        write_results("batches", facts, run.kept)


if __name__ == "__main__":
    main()
