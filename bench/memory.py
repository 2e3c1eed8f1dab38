"""Measures how many bytes of the store an ended job keeps until its result expires, by kind of key.

Run: `python -m bench.memory` (about a minute). Jobs of one tenant with a 64-byte prompt and an answer of 16 tokens pass
through the scripts that the door and a worker call: admit, claim, append, settle. There is no engine. The first jobs
create the keys that all jobs share; the growth of `used_memory` is measured over the jobs after them, once their event
streams, which live for a minute after a job's end, are deleted. The aim is at most 3,000 bytes per job.
"""

import argparse
import time
from collections import Counter
from typing import Any

import redis

from bench.common import environment, print_environment, private_store, write_results
from shared.jobs.job import Ending, NewJob, Usage, new_job_id
from shared.jobs.outcomes import Outcome
from shared.jobs.request import JobRequest
from shared.settings.settings import load
from shared.store.replies import HeartbeatReport
from shared.store.store import Store

#: The most bytes that an ended job may keep.
AIM_BYTES = 3_000
MODEL = "penstock-demo"
#: Names of the usual length: a worker's name contains its host's name, its pid and random digits.
WORKER = "gpu-host-07.cluster-4242-1a2b3c4d"
#: The jobs that run before the measurement, and the jobs between two heartbeats.
_WARM_UP, _PER_HEARTBEAT = 200, 20
#: The server's own defaults for hashes and streams, to measure a store that is not set up for us.
DEFAULTS = {"stream-node-max-bytes": "4096", "hash-max-ziplist-value": "64"}


def run_jobs(store: Store, jobs: int) -> None:
    """Run jobs from admission to end, and delete their event streams."""
    for number in range(jobs):
        if number % _PER_HEARTBEAT == 0:
            store.renew(HeartbeatReport(WORKER, MODEL, 8, 0, 1_000_000, 1_000_000), [])
        run_job(store)
        if number % _PER_HEARTBEAT == _PER_HEARTBEAT - 1:
            delete_streams(store.client)
    delete_streams(store.client)


def run_job(store: Store) -> None:
    """Admit, claim and settle one job, whose text arrives in three pieces."""
    job = NewJob(
        new_job_id(),
        "default",
        MODEL,
        payload={"prompt": "x" * 64, "seed": 1},
        prompt_tokens=16,
        max_tokens=16,
        deadline_ms=120_000,
        key_label="default",
        request=JobRequest(traceparent=f"00-{'a' * 32}-{'b' * 16}-01"),
        offer="0" * 16,
    )
    store.admit(job)
    (claimed,) = store.claim(WORKER, new_job_id(), MODEL, room=1, cells_free=1_000_000)
    for tokens in (1, 8, 16):
        store.append([(claimed.held, "some text of it, ", tokens)])
    usage = Usage(16, 0, 16, 5, 100, 7)
    store.settle(
        Ending(claimed.id, claimed.token, Outcome.SUCCEEDED, "length", text="word " * 16, usage=usage),
        WORKER,
    )


def delete_streams(client: redis.Redis) -> None:
    """Delete the event streams of all jobs, as the store does a minute after the end of each job."""
    found = list(client.scan_iter("penstock:events:*", count=10_000))
    if found:
        client.delete(*found)


def used_memory(client: redis.Redis) -> int:
    """Return the bytes that the store's data and buffers use, once the server has freed what is deleted."""
    time.sleep(0.5)
    memory: Any = client.info("memory")
    return int(memory["used_memory"])


def bytes_by_family(client: redis.Redis, jobs: int) -> dict[str, float]:
    """Return the bytes per job of each family of keys that takes at least one byte per job."""
    found: list[bytes] = list(client.scan_iter("*", count=10_000))
    totals: Counter[str] = Counter()
    for begin in range(0, len(found), 1_000):
        part = found[begin : begin + 1_000]
        pipe = client.pipeline(transaction=False)
        for key in part:
            pipe.memory_usage(key, samples=0)
        for key, size in zip(part, pipe.execute(), strict=True):
            totals[key.decode().rpartition(":")[0]] += size
    return {name: total / jobs for name, total in totals.most_common() if total >= jobs}


def measure(client: redis.Redis, jobs: int) -> dict[str, Any]:
    """Return the growth per job, and the bytes per job by family of keys."""
    client.flushall()
    store = Store(client)
    store.configure(load({}, None))
    run_jobs(store, _WARM_UP)
    before = used_memory(client)
    run_jobs(store, jobs)
    growth = (used_memory(client) - before) / jobs
    return {"bytes_per_job": growth, "by_family": bytes_by_family(client, jobs + _WARM_UP)}


def main() -> None:
    """Measure with the embedded store's own settings and with the server's defaults, and write both results."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--jobs", type=int, default=10_000)
    chosen = options.parse_args()
    with private_store() as client:
        facts = environment(0, client)
        print_environment(facts)
        figures = {"embedded store": measure(client, chosen.jobs)}
        for name, value in DEFAULTS.items():
            client.config_set(name, value)
        figures["server's defaults"] = measure(client, chosen.jobs)
    for name, measured in figures.items():
        print(f"{name}: {measured['bytes_per_job']:,.0f} bytes per ended job (aim: at most {AIM_BYTES:,})")
        for family, size in measured["by_family"].items():
            print(f"    {family:24}{size:10,.0f}")
    write_results("memory", facts, {"jobs": chosen.jobs, "aim_bytes": AIM_BYTES} | figures)


if __name__ == "__main__":
    main()
