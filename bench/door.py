"""Refusals per second beside a bare Flask route, how long a refusal takes under overload, and 500 idle event streams.

Run: `python -m bench.door` (about two minutes; needs `wrk`). Every door is one gunicorn process with gevent; wrk, the
store and the door share the machine's cores, the same way for both.
"""

import argparse
import contextlib
import json
import os
import re
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from http.client import HTTPConnection
from pathlib import Path

import redis

from bench.common import environment, keep, private_store, show, table
from shared.settings.settings import load
from shared.store.replies import Beat
from shared.store.store import Store

ASK = json.dumps({"prompt": "Once upon a time", "max_tokens": 20})
HEADERS = {"Content-Type": "application/json"}
#: Enough that a process is never idle, as the target is set.
CONNECTIONS = 64
#: What a system of 8 slots at 20 tokens a second takes of jobs of 20 tokens, ten times over.
OFFERED_PER_S = 80
STREAMS = 500
SUBMITS_PER_S = 20
#: No job ends in these runs: nothing but the bound decides.
WIDE = {
    "PENSTOCK_MAX_INFLIGHT": "100000",
    "PENSTOCK_MAX_QUEUE_SIZE": "100000",
    "PENSTOCK_MAX_QUEUE_TOKENS": "1000000000",
}
WRK = """wrk.method = "POST"
wrk.body = '{}'
wrk.headers["Content-Type"] = "application/json"
"""


def free_port() -> int:
    """A port that nobody has had a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextlib.contextmanager
def served(client: redis.Redis, arguments: list[str], port: int, folder: Path) -> Iterator[None]:
    """A gunicorn of one process on this store; returns once it listens."""
    plain = {name: value for name, value in os.environ.items() if not name.startswith("PENSTOCK_")}
    ours = {
        "REDIS_URL": "unix://" + str(client.get_connection_kwargs()["path"]),
        "PENSTOCK_AUTH": "open",
        "PENSTOCK_ADMISSION": "bounds",
        "PENSTOCK_WEB_WORKERS": "1",
        "PENSTOCK_LISTEN": f"127.0.0.1:{port}",
        "PENSTOCK_STATE_DIR": str(folder),
        "PENSTOCK_LOG_LEVEL": "warning",
    }
    process = subprocess.Popen([sys.executable, "-m", "gunicorn", *arguments], env=plain | ours | WIDE)
    try:
        until = time.monotonic() + 60
        while True:
            with contextlib.suppress(OSError):
                socket.create_connection(("127.0.0.1", port), 1).close()
                break
            if process.poll() is not None or time.monotonic() > until:
                raise RuntimeError(f"{arguments} does not listen")
            time.sleep(0.05)
        yield
    finally:
        process.terminate()
        process.wait(40)


@contextlib.contextmanager
def a_worker_that_claims_nothing(store: Store) -> Iterator[None]:
    """Beats of a live worker, so that the bound alone decides."""
    over = threading.Event()

    def beat() -> None:
        while not over.wait(1):
            store.renew(Beat("w1", "nothing", 8, 0, 1_000_000, 1_000_000), [])

    store.renew(Beat("w1", "nothing", 8, 0, 1_000_000, 1_000_000), [])
    thread = threading.Thread(target=beat)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def pressed(port: int, seconds: int, folder: Path) -> dict[str, float]:
    """Refusals per second that wrk gets on 64 connections. Raises RuntimeError when an answer is no refusal."""
    script = folder / "post.lua"
    script.write_text(WRK.format(ASK))
    command = ["wrk", "-t1", f"-c{CONNECTIONS}", f"-d{seconds}s", "--latency", "-s", str(script)]
    said = subprocess.run([*command, f"http://127.0.0.1:{port}/v1/jobs"], capture_output=True, text=True, check=True)
    total = int(re.findall(r"(\d+) requests in", said.stdout)[0])
    refused = int((re.findall(r"Non-2xx or 3xx responses: (\d+)", said.stdout) or ["0"])[0])
    if total == 0 or refused != total:
        raise RuntimeError(f"{refused} of {total} answers were refusals: {said.stdout}")
    number, unit = re.findall(r"99%\s+([\d.]+)(us|ms|s)", said.stdout)[0]
    scale = {"us": 0.001, "ms": 1.0, "s": 1000.0}[unit]
    return {"per_s": float(re.findall(r"Requests/sec:\s+([\d.]+)", said.stdout)[0]), "p99_ms": float(number) * scale}


def paced(port: int, per_s: int, seconds: int, status: int) -> dict[str, float]:
    """Calls at a steady rate, whatever the answers take; each is timed from when it was due."""
    count, lanes = per_s * seconds, 16
    spans: list[float] = []
    faults: list[int] = []
    begin = time.perf_counter() + 0.5

    def lane(first: int) -> None:
        connection = HTTPConnection("127.0.0.1", port, timeout=30)
        connection.connect()
        for number in range(first, count, lanes):
            due = begin + number / per_s
            time.sleep(max(0.0, due - time.perf_counter()))
            connection.request("POST", "/v1/jobs", ASK, HEADERS)
            answer = connection.getresponse()
            answer.read()
            spans.append(time.perf_counter() - due)
            if answer.status != status:
                faults.append(answer.status)
        connection.close()

    threads = [threading.Thread(target=lane, args=(first,)) for first in range(lanes)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if faults:
        raise RuntimeError(f"{len(faults)} of {count} answers were not {status}: {faults[:5]}")
    spans.sort()
    return {"per_s": per_s} | {f"p{p}_ms": spans[min(count - 1, count * p // 100)] * 1000 for p in (50, 99)}


@contextlib.contextmanager
def idle_streams(port: int) -> Iterator[None]:
    """Event streams of one job that waits; each has had its first bytes."""
    connection = HTTPConnection("127.0.0.1", port, timeout=30)
    connection.request("POST", "/v1/jobs", ASK, HEADERS)
    job_id = json.loads(connection.getresponse().read())["id"]
    connection.close()
    with contextlib.ExitStack() as stack:
        for _ in range(STREAMS):
            reader = stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=30))
            reader.sendall(f"GET /v1/jobs/{job_id}/events HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
            if not reader.recv(64).startswith(b"HTTP/1.1 200"):
                raise RuntimeError("a stream was refused")
        yield


def measure(client: redis.Redis, seconds: int, folder: Path) -> dict[str, dict[str, float]]:
    """One round of everything."""
    client.flushall()
    store = Store(client)
    store.configure(load(WIDE | {"PENSTOCK_ADMISSION": "bounds"}, None))
    rows: dict[str, dict[str, float]] = {}
    bare, door = free_port(), free_port()
    plain = ["-k", "gevent", "-w", "1", "-b", f"127.0.0.1:{bare}", "--log-level", "warning", "bench.bare_door:app"]
    with a_worker_that_claims_nothing(store):
        with served(client, ["-c", "python:web.gunicorn_conf", "web.wsgi:app"], door, folder):
            # Not counted: the first calls of a process load what they need.
            paced(door, SUBMITS_PER_S, 1, 202)
            rows["submit, nobody else"] = paced(door, SUBMITS_PER_S, seconds, 202)
            with idle_streams(door):
                rows[f"submit, {STREAMS} idle streams"] = paced(door, SUBMITS_PER_S, seconds, 202)
            client.hset("penstock:config", "max_inflight", "1")
            rows["refusal at 10x load"] = paced(door, OFFERED_PER_S, seconds, 503)
            rows["refusals: the door"] = pressed(door, seconds, folder)
        with served(client, plain, bare, folder):
            rows["refusals: bare Flask, 1 EVALSHA"] = pressed(bare, seconds, folder)
    ratio = rows["refusals: the door"]["per_s"] / rows["refusals: bare Flask, 1 EVALSHA"]["per_s"]
    return rows | {"ratio of the two": {"per_s": ratio}}


def main() -> None:
    """Rounds of everything; the median of each figure."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--seconds", type=int, default=8)
    options.add_argument("--rounds", type=int, default=3)
    chosen = options.parse_args()
    if shutil.which("wrk") is None:
        sys.exit("bench.door needs wrk (Debian's package of that name) and finds none")
    with private_store() as client, tempfile.TemporaryDirectory() as folder:
        facts = environment(0, client)
        show(facts)
        rounds = [measure(client, chosen.seconds, Path(folder)) for _ in range(chosen.rounds)]
    rows = {
        name: {figure: statistics.median(one[name][figure] for one in rounds) for figure in rounds[0][name]}
        for name in rounds[0]
    }
    table(rows)
    keep("door", facts | {"load_after": os.getloadavg()}, rows)


if __name__ == "__main__":
    main()
