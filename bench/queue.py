"""Measures admit, refuse, claim and settle per second on this store, beside RQ's own enqueue and workers.

Run: `python -m bench.queue` (about four minutes, or one with `--no-costs`). One client uses one connection: the
figures are those of one door process and one worker, not the server's limit. The engine costs nothing: a claimed job
is settled with 20 made-up tokens. RQ's worker runs a function that adds two numbers. At the end, the benchmark
measures what each script costs the server (bench/queue_costs.py).
"""

import argparse
import statistics
import time

import redis
from rq import Queue, SimpleWorker, Worker
from rq.serializers import JSONSerializer

from bench.common import environment, print_environment, print_rows, private_store, timed, write_results
from bench.queue_costs import MODEL, Load, a_job, ending, report
from shared.jobs.job import ClaimedJob, NewJob
from shared.settings.settings import load
from shared.store.replies import HeartbeatReport
from shared.store.store import Store

TENANTS = 50


def equal_job(number: int) -> NewJob:
    """Return job `number` of many equal jobs, spread over the tenants, with a fixed cost estimate."""
    return a_job(number % TENANTS, cost_mwt=85_000, deadline_ms=600_000, poll_grace_ms=None)


def open_bounds(client: redis.Redis, jobs: int) -> Store:
    """Empty the store and set its bounds above what this benchmark admits."""
    client.flushall()
    store = Store(client)
    bounds = {"PENSTOCK_MAX_INFLIGHT": str(10 * jobs), "PENSTOCK_MAX_QUEUE_SIZE": str(10 * jobs)}
    store.configure(load(bounds | {"PENSTOCK_MAX_QUEUE_TOKENS": str(10**9)}, None))
    store.renew(HeartbeatReport("w1", MODEL, 8, 0, 1_000_000, 1_000_000), [])
    return store


def drain(store: Store, room: int) -> list[ClaimedJob]:
    """Claim and settle until no job is queued, as a worker with `room` slots does. Return the claimed jobs."""
    done: list[ClaimedJob] = []
    while got := store.claim("w1", f"c{len(done)}-{room}", MODEL, room=room, cells_free=1_000_000):
        store.settle_many([ending(job) for job in got], "w1")
        done += got
    return done


def penstock_rows(client: redis.Redis, jobs: int) -> dict[str, dict[str, float]]:
    """Time each script alone, then whole jobs."""
    store = open_bounds(client, jobs)
    rows = {"admit": timed(jobs, lambda i: store.admit(equal_job(i)))}
    claimed: list[ClaimedJob] = []
    rows["claim (1 a call)"] = timed(
        jobs, lambda i: claimed.extend(store.claim("w1", f"c{i}", MODEL, room=1, cells_free=1_000_000))
    )
    rows["settle"] = timed(jobs, lambda i: store.settle(ending(claimed[i]), "w1"))

    store = open_bounds(client, jobs)
    client.hset("penstock:config", "max_inflight", "0")
    rows["refuse (inflight full)"] = timed(jobs, lambda i: store.admit(equal_job(i)))

    for room in (1, 8):
        store = open_bounds(client, jobs)
        for i in range(jobs):
            store.admit(equal_job(i))
        begin = time.perf_counter()
        done = drain(store, room)
        rows[f"whole jobs: claim+settle, {room} slot(s)"] = {
            "calls": len(done),
            "per_s": len(done) / (time.perf_counter() - begin),
        }
    return rows


def rq_rows(client: redis.Redis, jobs: int) -> dict[str, dict[str, float]]:
    """Time RQ's enqueue, its SimpleWorker and its forking Worker."""
    rows: dict[str, dict[str, float]] = {}
    for name, worker_class, count in (("SimpleWorker", SimpleWorker, jobs), ("Worker (forks)", Worker, jobs // 10)):
        client.flushall()
        queue = Queue("bench", connection=client, serializer=JSONSerializer)

        def enqueue(_: int, queue: Queue = queue) -> None:
            queue.enqueue("operator.add", 1, 2)

        rows["rq: enqueue"] = timed(count, enqueue)
        worker = worker_class([queue], connection=client, serializer=JSONSerializer, name=f"bench-{name[:6]}")
        worker.log_job_description = False
        begin = time.perf_counter()
        worker.work(burst=True, logging_level="ERROR")
        rows[f"rq: {name}"] = {"calls": count, "per_s": count / (time.perf_counter() - begin)}
    return rows


def main() -> None:
    """Run all rounds and write the median of each figure."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--jobs", type=int, default=2_000)
    options.add_argument("--rounds", type=int, default=3)
    options.add_argument("--no-costs", action="store_true", help="do not measure what each script costs the server")
    chosen = options.parse_args()
    costs: dict[str, dict[str, float]] = {}
    with private_store() as client:
        facts = environment(0, client)
        print_environment(facts)
        rounds = [penstock_rows(client, chosen.jobs) | rq_rows(client, chosen.jobs) for _ in range(chosen.rounds)]
    rows = {
        name: {figure: statistics.median(one[name][figure] for one in rounds) for figure in rounds[0][name]}
        for name in rounds[0]
    }
    print_rows(rows)
    whole = rows["whole jobs: claim+settle, 8 slot(s)"]["per_s"]
    for name in ("SimpleWorker", "Worker (forks)"):
        print(f"whole jobs, 8 slots: {whole / rows[f'rq: {name}']['per_s']:.1f} times the rate of RQ's {name}")
    if not chosen.no_costs:
        with private_store() as client:
            costs = report(client, Load(tenants=10_000, waiting=10, calls=4_000))
    write_results("queue", facts, {"calls": rows, "script_costs": costs})


if __name__ == "__main__":
    main()
