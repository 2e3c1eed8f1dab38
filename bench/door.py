"""Measures the door: refusals per second against a bare Flask route, latency under overload, 500 idle event streams.

Run: `python -m bench.door` (about two minutes; needs `wrk`). Door and bare route each run in one gunicorn process with
gevent, and each shares the machine's cores with wrk and the store in the same way.
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

from bench.common import environment, print_environment, print_rows, private_store, write_results
from shared.settings.settings import load
from shared.store.replies import HeartbeatReport
from shared.store.store import Store

ASK = json.dumps({"prompt": "Once upon a time", "max_tokens": 20})
HEADERS = {"Content-Type": "application/json"}
#: The target is set for a process that is never idle; this many connections keep it busy.
CONNECTIONS = 64
#: Ten times the rate of 20-token jobs that a system with 8 slots sustains at 20 tokens a second.
OFFERED_PER_S = 80
STREAMS = 500
SUBMITS_PER_S = 20
#: Bounds so high that only the bound under test refuses jobs, although no job ends in these runs.
HIGH_BOUNDS = {
    "PENSTOCK_MAX_INFLIGHT": "100000",
    "PENSTOCK_MAX_QUEUE_SIZE": "100000",
    "PENSTOCK_MAX_QUEUE_TOKENS": "1000000000",
}
WRK = """wrk.method = "POST"
wrk.body = '{}'
wrk.headers["Content-Type"] = "application/json"
"""


def free_port() -> int:
    """Return a port that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextlib.contextmanager
def served(client: redis.Redis, arguments: list[str], port: int, folder: Path) -> Iterator[None]:
    """Run gunicorn with one process on this store for the length of a block, which begins once it listens."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("PENSTOCK_")}
    settings = {
        "REDIS_URL": "unix://" + str(client.get_connection_kwargs()["path"]),
        "PENSTOCK_AUTH": "open",
        "PENSTOCK_ADMISSION": "bounds",
        "PENSTOCK_WEB_WORKERS": "1",
        "PENSTOCK_LISTEN": f"127.0.0.1:{port}",
        "PENSTOCK_STATE_DIR": str(folder),
        "PENSTOCK_LOG_LEVEL": "warning",
    }
    process = subprocess.Popen([sys.executable, "-m", "gunicorn", *arguments], env=inherited | settings | HIGH_BOUNDS)
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
def worker_without_claims(store: Store) -> Iterator[None]:
    """Send the heartbeats of a live worker that claims nothing, so that only the bound causes refusals."""
    stopped = threading.Event()

    def beat() -> None:
        while not stopped.wait(1):
            store.renew(HeartbeatReport("w1", "nothing", 8, 0, 1_000_000, 1_000_000), [])

    store.renew(HeartbeatReport("w1", "nothing", 8, 0, 1_000_000, 1_000_000), [])
    thread = threading.Thread(target=beat)
    thread.start()
    try:
        yield
    finally:
        stopped.set()
        thread.join()


def closed_loop(port: int, seconds: int, folder: Path, *, probes: bool = False) -> dict[str, float]:
    """Return the refusals per second that wrk receives on 64 connections, or the answers to health probes.

    Raises RuntimeError if any answer is another one.
    """
    script, path = folder / "requests.lua", "/health" if probes else "/v1/jobs"
    script.write_text("" if probes else WRK.format(ASK))
    command = ["wrk", "-t1", f"-c{CONNECTIONS}", f"-d{seconds}s", "--latency", "-s", str(script)]
    done = subprocess.run([*command, f"http://127.0.0.1:{port}{path}"], capture_output=True, text=True, check=True)
    total = int(re.findall(r"(\d+) requests in", done.stdout)[0])
    refused = int((re.findall(r"Non-2xx or 3xx responses: (\d+)", done.stdout) or ["0"])[0])
    if total == 0 or refused != (0 if probes else total):
        raise RuntimeError(f"{refused} of {total} answers were refusals: {done.stdout}")
    number, unit = re.findall(r"99%\s+([\d.]+)(us|ms|s)", done.stdout)[0]
    scale = {"us": 0.001, "ms": 1.0, "s": 1000.0}[unit]
    return {"per_s": float(re.findall(r"Requests/sec:\s+([\d.]+)", done.stdout)[0]), "p99_ms": float(number) * scale}


def open_loop(port: int, per_s: int, seconds: int, status: int) -> dict[str, float]:
    """Send calls at a steady rate, however long the answers take, and time each from the moment it was due."""
    count, clients = per_s * seconds, 16
    spans: list[float] = []
    faults: list[int] = []
    begin = time.perf_counter() + 0.5

    def client(first: int) -> None:
        connection = HTTPConnection("127.0.0.1", port, timeout=30)
        connection.connect()
        for number in range(first, count, clients):
            due = begin + number / per_s
            time.sleep(max(0.0, due - time.perf_counter()))
            connection.request("POST", "/v1/jobs", ASK, HEADERS)
            answer = connection.getresponse()
            answer.read()
            spans.append(time.perf_counter() - due)
            if answer.status != status:
                faults.append(answer.status)
        connection.close()

    threads = [threading.Thread(target=client, args=(first,)) for first in range(clients)]
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
    """Hold STREAMS event streams of one queued job open. Each has received its first bytes."""
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
    """Run one round of all measurements."""
    client.flushall()
    store = Store(client)
    store.configure(load(HIGH_BOUNDS | {"PENSTOCK_ADMISSION": "bounds"}, None))
    rows: dict[str, dict[str, float]] = {}
    bare, door = free_port(), free_port()
    bare_route = ["-k", "gevent", "-w", "1", "-b", f"127.0.0.1:{bare}", "--log-level", "warning", "bench.bare_door:app"]
    with worker_without_claims(store):
        with served(client, ["-c", "python:web.gunicorn_conf", "web.wsgi:app"], door, folder):
            # These calls are not counted: the first calls of a process import modules and fill caches.
            open_loop(door, SUBMITS_PER_S, 1, 202)
            rows["submit, nobody else"] = open_loop(door, SUBMITS_PER_S, seconds, 202)
            with idle_streams(door):
                rows[f"submit, {STREAMS} idle streams"] = open_loop(door, SUBMITS_PER_S, seconds, 202)
            client.hset("penstock:config", "max_inflight", "1")
            rows["refusal at 10x load"] = open_loop(door, OFFERED_PER_S, seconds, 503)
            rows["refusals: the door"] = closed_loop(door, seconds, folder)
            rows["/health: the door"] = closed_loop(door, seconds, folder, probes=True)
        with served(client, bare_route, bare, folder):
            rows["refusals: bare Flask, 1 EVALSHA"] = closed_loop(bare, seconds, folder)
    per_s = rows["refusals: bare Flask, 1 EVALSHA"]["per_s"]
    ratios = {f"{name} / bare Flask": rows[f"{name}: the door"]["per_s"] / per_s for name in ("refusals", "/health")}
    return rows | {name: {"per_s": ratio} for name, ratio in ratios.items()}


def main() -> None:
    """Run all rounds and write the median of each figure."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--seconds", type=int, default=8)
    options.add_argument("--rounds", type=int, default=3)
    chosen = options.parse_args()
    if shutil.which("wrk") is None:
        sys.exit("bench.door needs the program wrk, which was not found: install the Debian package wrk")
    with private_store() as client, tempfile.TemporaryDirectory() as folder:
        facts = environment(0, client)
        print_environment(facts)
        rounds = [measure(client, chosen.seconds, Path(folder)) for _ in range(chosen.rounds)]
    rows = {
        name: {figure: statistics.median(one[name][figure] for one in rounds) for figure in rounds[0][name]}
        for name in rounds[0]
    }
    print_rows(rows)
    write_results("door", facts | {"load_after": os.getloadavg()}, rows)


if __name__ == "__main__":
    main()
