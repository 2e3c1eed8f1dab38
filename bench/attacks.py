"""Measure how soon /health is answered while clients without a key try to hold up the door.

Run it with `python -m bench.attacks`. It starts a store and a door with two processes. First it probes without an
attack; then each attack runs for a few seconds alone, and then six endless bodies and two pipelines run at once for
--seconds. /health is asked once a second, each time on a new connection, and must be answered within a second. At the
end the program holds idle connections and reports what each costs in memory.
"""

import argparse
import contextlib
import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from http.client import HTTPConnection
from statistics import median
from typing import Any

import psutil
import redis

from bench.attackers import SIX_BODIES, TWO_PIPELINES, attacking
from bench.common import environment, print_environment, private_store, write_results
from bench.door import free_port

#: How long an answer may take while the door is attacked, in seconds.
_AIM_S = 1.0
_PROBE_INTERVAL_S = 1.0
_IDLE_CONNECTIONS = 1_000

ALONE: dict[str, tuple[str, ...]] = {
    "no attack": (),
    "six keyless posts": ("keyless_post",) * 6,
    "six posts for an unknown host": ("unknown_host",) * 6,
    "six bodies on GET /health": ("body_on_get",) * 6,
    "six bodies in 1-byte chunks": ("tiny_chunks",) * 6,
    "six heads without end": ("endless_head",) * 6,
    "two pipelines": TWO_PIPELINES,
}


@contextlib.contextmanager
def door(client: redis.Redis, port: int, folder: str) -> Iterator[psutil.Process]:
    """Run a door with two processes that requires keys, for the `with` block; yield gunicorn's main process."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("PENSTOCK_")}
    settings = {
        "REDIS_URL": "unix://" + str(client.get_connection_kwargs()["path"]),
        "PENSTOCK_LISTEN": f"127.0.0.1:{port}",
        "PENSTOCK_STATE_DIR": folder,
        "PENSTOCK_LOG_LEVEL": "warning",
    }
    process = subprocess.Popen([sys.executable, "-P", "-m", "web"], env=inherited | settings)
    try:
        until_s = time.monotonic() + 60
        while True:
            with contextlib.suppress(OSError):
                probe(port)
                break
            if process.poll() is not None or time.monotonic() > until_s:
                raise RuntimeError("the door does not answer")
            time.sleep(0.05)
        yield psutil.Process(process.pid)
    finally:
        process.terminate()
        process.wait(40)


def probe(port: int) -> float:
    """Ask /health on a new connection; return how long the answer took, in seconds. Raises OSError after 30 s."""
    began_s = time.perf_counter()
    connection = HTTPConnection("127.0.0.1", port, timeout=30)
    try:
        connection.request("GET", "/health")
        if connection.getresponse().status != 200:
            raise ConnectionError("/health did not answer 200")
    finally:
        connection.close()
    return time.perf_counter() - began_s


def under_attack(port: int, master: psutil.Process, kinds: tuple[str, ...], seconds: float) -> dict[str, Any]:
    """Ask /health once a second for this long while the attackers run; return the figures, times in ms."""
    children = master.children()
    cpu_s = sum(sum(child.cpu_times()[:2]) for child in children)
    took: list[float] = []
    failed = 0
    lock = threading.Lock()

    def ask() -> None:
        nonlocal failed
        try:
            seen = probe(port)
        except OSError:
            with lock:
                failed += 1
        else:
            with lock:
                took.append(seen)

    began_s = time.monotonic()
    # Each probe is a thread of its own, so that a late answer delays no later probe.
    with attacking(port, kinds):
        probes = []
        while time.monotonic() - began_s < seconds:
            probes.append(threading.Thread(target=ask))
            probes[-1].start()
            time.sleep(_PROBE_INTERVAL_S)
        wall_s = time.monotonic() - began_s
        for thread in probes:
            thread.join()
    survivors = {child.pid for child in master.children()} & {child.pid for child in children}
    used_s = sum(sum(child.cpu_times()[:2]) for child in children if child.pid in survivors) - cpu_s
    return {
        "seconds": seconds,
        "attackers": len(kinds),
        "probes": len(probes),
        "unanswered": failed,
        "later_than_aim": sum(seen > _AIM_S for seen in took),
        "median_ms": round(median(took) * 1000, 1) if took else None,
        "max_ms": round(max(took) * 1000, 1) if took else None,
        "killed_processes": len(children) - len(survivors),
        "cores_used_by_door": round(used_s / wall_s, 2),
    }


def memory_of_idle_connections(port: int, master: psutil.Process) -> dict[str, Any]:
    """Hold idle connections and return what each adds to the memory of the door's processes, in kB."""

    def resident_bytes() -> int:
        return int(sum(child.memory_info().rss for child in master.children()))

    before = resident_bytes()
    with contextlib.ExitStack() as stack:
        for _ in range(_IDLE_CONNECTIONS):
            stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=10))
        time.sleep(2)
        grown = resident_bytes() - before
    return {"connections": _IDLE_CONNECTIONS, "kb_each": round(grown / _IDLE_CONNECTIONS / 1000, 1)}


def main() -> None:
    """Run the attacks, print a line for each, and write the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=45.0, help="length of the attack with all clients")
    parser.add_argument("--alone", type=float, default=8.0, help="length of each attack of one kind")
    chosen = parser.parse_args()
    with private_store() as client, tempfile.TemporaryDirectory() as folder:
        # Nothing is random here; the seed is printed because every benchmark prints one.
        facts = environment(0, client)
        print_environment(facts)
        port = free_port()
        figures: dict[str, Any] = {}
        with door(client, port, folder) as master:
            attacks = [(name, kinds, chosen.alone) for name, kinds in ALONE.items()]
            attacks.append(("six bodies and two pipelines", SIX_BODIES + TWO_PIPELINES, chosen.seconds))
            for name, kinds, seconds in attacks:
                figures[name] = under_attack(port, master, kinds, seconds)
                print(f"{name}: {figures[name]}", flush=True)
            figures["idle connections"] = memory_of_idle_connections(port, master)
            print(f"idle connections: {figures['idle connections']}")
    write_results("attacks", facts, figures)


if __name__ == "__main__":
    main()
