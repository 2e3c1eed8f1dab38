"""Measures what looking at the system costs: readiness checks, snapshots, the fleet metrics, and heartbeats.

Run: `python -m bench.readiness` (about a minute). The store has 15,000 fields of statistics and the heartbeats of 256
workers. One door process answers. Answers are timed from the moment at which the request was due, so that a late answer
cannot hide behind the next request's wait.
"""

import argparse
import statistics
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import redis
from redis.typing import EncodableT, FieldT

from bench.common import environment, print_environment, print_rows, private_store, write_results
from bench.door import HIGH_BOUNDS, free_port, served
from shared.metrics.spec import BUCKETS_MS
from shared.settings.settings import load
from shared.store import keys
from shared.store.replies import HeartbeatReport
from shared.store.store import Store

TENANTS, MODELS = 51, 4
FEW_WORKERS, MANY_WORKERS = 2, 256
PER_S = 100
CLIENTS = 8
#: The aim for the store's CPU time under PER_S readiness checks a second, in percent of a core.
AIM_PERCENT = 5.0


def add_statistics(client: redis.Redis) -> int:
    """Write the fields of four histograms and some counters for each tenant and model; return how many there are."""
    bounds = [*(str(bound) for bound in BUCKETS_MS), "inf", "sum_us"]
    fields: dict[FieldT, EncodableT] = {}
    for labels in (f"tenant{tenant:02}|model{model}" for tenant in range(TENANTS) for model in range(MODELS)):
        for name in ("queue_wait", "time_per_output_token", "time_to_first_token|s", "request_duration|succeeded"):
            head, _, tail = name.partition("|")
            series = f"{tail}|{labels}" if head == "request_duration" else f"{labels}|{tail}".rstrip("|")
            fields |= {f"h|{head}|{series}|{bound}": 1_000 for bound in bounds}
        fields[f"ended|{labels}|succeeded"] = 1_000
    client.hset(keys.stats(), mapping=fields)
    return len(fields)


def beat(store: Store, number: int) -> None:
    """Send the heartbeat of worker `number`, which has four slots and reports new rates each time."""
    rates = {"mu_wtps": 400 + number % 7 + time.monotonic() % 1, "prefill_tps": 9_000.5, "tpot_ms": 12.25}
    store.renew(HeartbeatReport(f"w{number}", f"model{number % MODELS}", 4, 0, 8_192, 8_192, facts=dict(rates)), [])


def script_cost(client: redis.Redis, calls: int, call: Callable[[], Any]) -> dict[str, float]:
    """Return the mean µs that the store spends in one call, and the commands inside; the first call is not counted."""
    call()
    client.config_resetstat()
    for _ in range(calls):
        call()
    stats: Any = client.info("commandstats")
    script = stats.pop("cmdstat_evalsha")
    inside = sum(entry["calls"] for name, entry in stats.items() if "config" not in name and "info" not in name)
    return {"us": script["usec"] / script["calls"], "commands": inside / script["calls"]}


def heartbeat_costs(client: redis.Redis, store: Store) -> dict[str, dict[str, float]]:
    """Return the cost of a heartbeat in a fleet of few workers and in one of many, which then stays."""
    rows = {}
    for workers in (FEW_WORKERS, MANY_WORKERS):
        for number in range(workers):
            beat(store, number)
        rows[f"heartbeat, {workers} workers"] = script_cost(client, 2_000, lambda: beat(store, 0))
    few, many = (rows[f"heartbeat, {workers} workers"]["us"] for workers in (FEW_WORKERS, MANY_WORKERS))
    return rows | {"ratio of the two": {"us": many / few}}


def under_load(
    client: redis.Redis, port: int, path: str, seconds: int, meanwhile: Callable[[], None] | None = None
) -> dict[str, float]:
    """Send PER_S requests a second; return the store's CPU in percent of a core, and percentiles of the answers.

    `meanwhile` is called once a second.
    """
    spans: list[float] = []
    ended = threading.Event()

    def ask(first: int) -> None:
        connection = HTTPConnection("127.0.0.1", port, timeout=30)
        for number in range(first, PER_S * seconds, CLIENTS):
            due = begin + number / PER_S
            time.sleep(max(0.0, due - time.perf_counter()))
            connection.request("GET", path)
            answer = connection.getresponse()
            answer.read()
            if answer.status != 200:
                raise RuntimeError(f"{path} answered {answer.status}")
            spans.append(time.perf_counter() - due)
        connection.close()

    def repeat() -> None:
        while meanwhile is not None and not ended.wait(1):
            meanwhile()

    before_s, begin = _cpu_s(client), time.perf_counter()
    threads = [threading.Thread(target=ask, args=(first,)) for first in range(CLIENTS)]
    beside = threading.Thread(target=repeat)
    for thread in (*threads, beside):
        thread.start()
    for thread in threads:
        thread.join()
    ended.set()
    beside.join()
    percent = 100 * (_cpu_s(client) - before_s) / (time.perf_counter() - begin)
    spans.sort()
    if len(spans) != PER_S * seconds:
        raise RuntimeError(f"{len(spans)} of {PER_S * seconds} requests were answered")
    return {
        "store_cpu_%": percent,
        "p50_ms": 1_000 * statistics.median(spans),
        "p99_ms": 1_000 * spans[len(spans) * 99 // 100],
        "max_ms": 1_000 * spans[-1],
    }


def _cpu_s(client: redis.Redis) -> float:
    cpu: Any = client.info("cpu")
    return float(cpu["used_cpu_user"] + cpu["used_cpu_sys"])


def _scrape(port: int) -> None:
    connection = HTTPConnection("127.0.0.1", port, timeout=30)
    with suppress(OSError):
        connection.request("GET", "/metrics/fleet")
        connection.getresponse().read()
    connection.close()


def measure(client: redis.Redis, seconds: int, folder: Path) -> dict[str, dict[str, float]]:
    """Run all measurements."""
    client.flushall()
    store = Store(client)
    store.configure(load(HIGH_BOUNDS | {"PENSTOCK_ADMISSION": "bounds"}, None))
    rows = heartbeat_costs(client, store)
    fields = add_statistics(client)
    rows[f"snapshot, {fields:,} fields"] = script_cost(client, 50, lambda: store.snapshot(stats=True))
    rows["snapshot without statistics"] = script_cost(client, 200, store.snapshot)
    rows["overview"] = script_cost(client, 2_000, store.overview)

    stopped = threading.Event()

    def keep_live() -> None:
        while not stopped.wait(1):
            for number in range(MANY_WORKERS):
                beat(store, number)

    heart = threading.Thread(target=keep_live)
    heart.start()
    port = free_port()
    try:
        with served(client, ["-c", "python:web.gunicorn_conf", "web.wsgi:app"], port, folder):
            under_load(client, port, "/health/ready", 1)
            rows[f"/health, {PER_S} a second"] = under_load(client, port, "/health", seconds)
            rows[f"/health/ready, {PER_S} a second"] = under_load(client, port, "/health/ready", seconds)
            rows["/health beside a scrape a second"] = under_load(
                client, port, "/health", seconds, lambda: _scrape(port)
            )
    finally:
        stopped.set()
        heart.join()
    ready, idle = rows[f"/health/ready, {PER_S} a second"], rows[f"/health, {PER_S} a second"]
    rows["what the readiness checks cost"] = {"store_cpu_%": ready["store_cpu_%"] - idle["store_cpu_%"]}
    rows["aim"] = {"store_cpu_%": AIM_PERCENT}
    return rows


def main() -> None:
    """Measure, print the figures and write the results."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--seconds", type=int, default=10)
    chosen = options.parse_args()
    with private_store() as client, tempfile.TemporaryDirectory() as folder:
        facts = environment(0, client)
        print_environment(facts)
        rows = measure(client, chosen.seconds, Path(folder))
    columns = ("us", "commands", "store_cpu_%", "p50_ms", "p99_ms", "max_ms")
    print_rows({name: {column: row.get(column, float("nan")) for column in columns} for name, row in rows.items()})
    write_results("readiness", facts, rows)


if __name__ == "__main__":
    main()
