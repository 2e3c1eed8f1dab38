"""E2: the largest difference in service of two tenants with queued jobs, in named and a thousand random scenarios.

A third of the random scenarios has one pool, a third two, and a third three; half of them have groups of tenants.
"""

from typing import Any

from bench.common import private_store
from bench.sim.asks import GENERATED_WEIGHT
from bench.sim.fairness import Scenario, Services, run_scenario
from bench.sim.ours import PenstockSystem
from bench.sim.rows import Figures, Row, Task
from bench.sim.scenarios import drawn, floods_of_long_answers, named
from bench.sim.yard import Basis

RANDOM = 1_000
#: Random scenarios in one task.
BATCH = 100
#: Bounds and deadlines so high that no job is refused or late: E2 judges turns, not admission. Services are counted
#: with this weight of a generated token, whatever the modelled workers' fits are.
OPEN = {
    "PENSTOCK_MAX_INFLIGHT": "100000",
    "PENSTOCK_MAX_QUEUE_SIZE": "100000",
    "PENSTOCK_MAX_QUEUE_TOKENS": "1000000000",
    "PENSTOCK_MAX_WAIT_MS": "3600000",
    "PENSTOCK_MAX_DEADLINE_MS": "3600000",
    "PENSTOCK_GENERATED_WEIGHT": str(GENERATED_WEIGHT),
}


def tasks() -> list[Task]:
    """Return a task for each named scenario, and one for each batch of random scenarios."""
    batches = [Task("E2", ("random", first), random_batch) for first in range(0, RANDOM, BATCH)]
    return [*(Task("E2", ("named", name), one_named) for name in named()), *batches]


def run_one(store: Any, environ: dict[str, str], scenario: Scenario) -> tuple[list[Services], int]:
    """Run a scenario. Return the recorded services of each pool, and the number of unanswered jobs."""
    pools, jobs = run_scenario(PenstockSystem(store, {**environ, **OPEN}), scenario)
    return pools, sum(1 for job in jobs if job.outcome != "succeeded")


def one_named(basis: Basis, kind: str, name: str) -> Figures:  # noqa: ARG001 - the key's first part
    """Run one named scenario."""
    with private_store() as store:
        store.config_set("appendonly", "no")
        (services,), _ = run_one(store, dict(basis.environ), named()[name])
    return {
        "worst_wt": services.worst(),
        "bound_wt": services.bound_wt,
        "vtc_bound_wt": named()[name].batch_bound_wt,
        "jain": services.jain_while_all_wait(),
    }


def random_batch(basis: Basis, kind: str, first: int) -> Figures:  # noqa: ARG001 - the key's first part
    """Run one batch of random scenarios."""
    outside: list[int] = []
    starved, nearest = 0, 0.0
    with private_store() as store:
        store.config_set("appendonly", "no")
        for seed in range(first, first + BATCH):
            pools, unanswered = run_one(store, dict(basis.environ), drawn(seed, 1 + seed % 3, grouped=seed % 2 == 1))
            part = max(services.worst() / services.bound_wt for services in pools)
            nearest = max(nearest, part)
            starved += unanswered > 0
            if part > 1:
                outside.append(seed)
    return {"outside": outside, "nearest": nearest, "starved": starved, "scenarios": BATCH}


def rows(got: dict[tuple[Any, ...], Figures]) -> list[Row]:
    """Return the rows for the bound in every scenario and for Jain's index in the named ones."""
    batches = [figures for key, figures in got.items() if key[0] == "random"]
    by_name = {key[1]: figures for key, figures in got.items() if key[0] == "named"}
    outside = [seed for figures in batches for seed in figures["outside"]]
    worst = max(figures["nearest"] for figures in batches)
    starved = sum(figures["starved"] for figures in batches)
    total = sum(figures["scenarios"] for figures in batches)
    parts = [figures["worst_wt"] / figures["bound_wt"] for figures in by_name.values()]
    jains = [figures["jain"] for figures in by_name.values()]
    of_vtc = [by_name[name]["bound_wt"] / by_name[name]["vtc_bound_wt"] for name in floods_of_long_answers()]
    return [
        Row(
            "E2",
            f"{total} random scenarios with 1 to 3 pools and groups: largest difference in service to its bound",
            "<= 1 in every one",
            f"{worst:.2f}, {len(outside)} outside",
            not outside,
        ),
        Row("E2", "scenarios in which some job was never answered", "0", str(starved), starved == 0),
        Row("E2", "named scenarios: difference to bound", "<= 1", " ".join(f"{p:.2f}" for p in parts), max(parts) <= 1),
        Row(
            "E2",
            "named scenarios: Jain's index of served wt while all wait",
            ">= .995",
            " ".join(f"{value:.4f}" for value in jains),
            min(jains) >= 0.995,
        ),
        Row(
            "E2",
            "floods of answers of 1,000 to 1,900 tokens: bound with preemption to the one without it",
            "<= .2",
            " ".join(f"{part:.3f}" for part in of_vtc),
            max(of_vtc) <= 0.2,
        ),
    ]
