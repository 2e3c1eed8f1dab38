"""E8: ten thousand tenants with ten queued jobs each, and killed workers: the cost of the scripts, and leaks.

The figures come from the server: `commandstats` and its latency histogram, one script at a time. Time is virtual, so
that leases lapse without waiting. The scripts, the records and the sizes are real.
"""

import time
from collections.abc import Callable
from typing import Any

import redis

from bench.common import private_store
from bench.sim.clock import VirtualTimeClient
from bench.sim.rows import Figures, Row, Task
from bench.sim.yard import Basis
from shared.audit.invariants import find_breaches, unowned_keys
from shared.jobs.job import ClaimedJob, Ending, NewJob, Usage
from shared.jobs.outcomes import Outcome, Refused
from shared.settings.settings import load
from shared.store.replies import Admitted, HeartbeatReport
from shared.store.store import Store

TENANTS, DEPTH = 10_000, 10
#: Number of measured calls of each script, made while all queues are full.
CALLS = 2_000
WORKERS, SLOTS = 64, 32
MODEL = "modelled"
#: µs that a call may take on average (bench/README.md).
BUDGET_US = {"admit": 50, "refuse": 15, "claim": 50, "settle": 55}
OPEN = {
    "PENSTOCK_MAX_INFLIGHT": "1000000",
    "PENSTOCK_MAX_WAIT_MS": "3600000",
    "PENSTOCK_DEFAULT_DEADLINE_MS": "600000",
}
_FACTS: dict[str, str | int | float] = {"mu_wtps": 1e6, "prefill_tps": 1e5, "tpot_ms": 5.0}


class Crowded:
    """A store with TENANTS tenants and their jobs, and the calls that are measured."""

    def __init__(self, client: redis.Redis) -> None:
        client.config_set("appendonly", "no")
        self.client = VirtualTimeClient.over(client)
        self.store = Store(self.client)
        self.store.configure(load(OPEN, None))
        self.claimed: list[tuple[str, ClaimedJob]] = []
        self._made = self._claims = 0
        self.refused = 0

    def beat(self, names: range = range(WORKERS)) -> None:
        """Send a heartbeat of each of these workers that renews all jobs it holds."""
        for i in names:
            held = [job.held for worker, job in self.claimed if worker == f"w{i}"]
            self.store.renew(HeartbeatReport(f"w{i}", MODEL, SLOTS, len(held), 10**7, 10**7, facts=_FACTS), held)

    def admit(self) -> None:
        """Offer one more job, for the next tenant."""
        tenant = self._made % TENANTS
        self._made += 1
        job = NewJob(
            id=f"j{self._made}",
            tenant=f"tenant{tenant}",
            model=MODEL,
            payload={"prompt": "x" * 200, "max_tokens": 64},
            prompt_tokens=100,
            max_tokens=64,
            deadline_ms=600_000,
        )
        answer = self.store.admit(job)
        assert isinstance(answer, Admitted | Refused), answer
        self.refused += isinstance(answer, Refused)

    def claim(self) -> None:
        """Claim one job for the next worker."""
        self._claims += 1
        worker = f"w{self._claims % WORKERS}"
        for job in self.store.claim(worker, f"c{self._claims}", MODEL, room=1, cells_free=10**7):
            self.claimed.append((worker, job))

    def settle(self) -> None:
        """Settle the job that was claimed first."""
        worker, job = self.claimed.pop(0)
        usage = Usage(100, 0, 64, 10, 300, 10)
        self.store.settle(
            Ending(job.id, job.token, Outcome.SUCCEEDED, "length", text="word " * 64, usage=usage), worker
        )

    def measure(self, call: Callable[[], None]) -> dict[str, float]:
        """Make CALLS calls and return the server's own figures, in µs."""
        self.client.flush()
        self.client.config_resetstat()
        for _ in range(CALLS):
            call()
        stats: Any = self.client.info("commandstats")
        tails: Any = self.client.info("latencystats")
        tail = tails["latency_percentiles_usec_evalsha"]
        return {"mean_us": stats["cmdstat_evalsha"]["usec_per_call"], "p99_us": tail["p99"], "p999_us": tail["p99.9"]}


def tasks() -> list[Task]:
    """Return the one task of E8."""
    return [Task("E8", (), one)]


def one(basis: Basis) -> Figures:  # noqa: ARG001 - a task's signature
    """Fill the store, measure the scripts, kill workers, drain the rest and count what is left."""
    with private_store() as client:
        crowd = Crowded(client)
        crowd.beat()
        begin = time.perf_counter()
        for _ in range(TENANTS * DEPTH):
            crowd.client.defer(crowd.admit)
            if crowd.client.deferred > 200:
                crowd.client.flush()
        crowd.client.flush()
        filled_s = time.perf_counter() - begin
        figures: Figures = {"filled_per_s": TENANTS * DEPTH / filled_s, "refused_while_filling": crowd.refused}
        figures["admit"] = crowd.measure(crowd.admit)
        client.hset("penstock:config", "max_inflight", "1")
        figures["refuse"] = crowd.measure(crowd.admit)
        client.hset("penstock:config", "max_inflight", OPEN["PENSTOCK_MAX_INFLIGHT"])
        figures["claim"] = crowd.measure(crowd.claim)
        figures["settle"] = crowd.measure(crowd.settle)
        return figures | _after_kills(crowd, client)


def _after_kills(crowd: Crowded, client: redis.Redis) -> Figures:
    """Let half of the workers die with claimed jobs, settle or expire all other jobs, and count what is left."""
    for _ in range(WORKERS * 16):
        crowd.claim()
    crowd.beat()
    dead = {f"w{i}" for i in range(WORKERS // 2)}
    lost = sum(1 for worker, _ in crowd.claimed if worker in dead)
    crowd.claimed = [(worker, job) for worker, job in crowd.claimed if worker not in dead]
    requeued = 0
    for _ in range(20):
        crowd.client.now_ms += 1_000
        crowd.beat(range(WORKERS // 2, WORKERS))
        while (reaped := crowd.store.reap()).moved:
            requeued += reaped.requeued
    while crowd.claimed:
        crowd.settle()
    crowd.client.now_ms += 700_000
    crowd.beat(range(WORKERS // 2, WORKERS))
    while crowd.store.reap().moved:
        pass
    snapshot = crowd.store.snapshot()
    crowd.client.done()
    return {
        "lost_with_workers": lost,
        "requeued": requeued,
        "left_inflight": snapshot.inflight + snapshot.waiting + snapshot.running,
        "breaches": len(find_breaches(client)),
        "unowned_keys": len(unowned_keys(client)),
    }


def rows(got: dict[tuple[Any, ...], Figures]) -> list[Row]:
    """Return the rows for the costs and for what leaked."""
    figures = got[()]
    costs = {name: figures[name]["mean_us"] for name in BUDGET_US}
    tails = {name: figures[name]["p999_us"] for name in BUDGET_US}
    left = figures["left_inflight"] + figures["breaches"] + figures["unowned_keys"]
    return [
        Row(
            "E8",
            f"µs a call at {TENANTS:,} tenants, {TENANTS * DEPTH:,} waiting: " + " ".join(BUDGET_US),
            "<= " + " ".join(str(value) for value in BUDGET_US.values()),
            " ".join(f"{cost:.0f}" for cost in costs.values()),
            all(costs[name] <= most for name, most in BUDGET_US.items()),
        ),
        Row(
            "E8",
            "p99.9 in µs, the same",
            "< 1000",
            " ".join(f"{tail:.0f}" for tail in tails.values()),
            max(tails.values()) < 1_000,
        ),
        Row(
            "E8",
            "after kills and a drain: jobs left inflight, broken invariants, keys without an owner",
            "0",
            f"{figures['left_inflight']} {figures['breaches']} {figures['unowned_keys']} "
            f"({figures['requeued']} of {figures['lost_with_workers']} lost jobs came back)",
            left == 0 and figures["requeued"] == figures["lost_with_workers"],
        ),
    ]
