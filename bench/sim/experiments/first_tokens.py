"""E9: the first tokens of a quiet tenant with short answers beside a loud one with long answers, by number of slots."""

from typing import Any

from bench.common import private_store
from bench.sim.asks import GENERATED_WEIGHT, SimJob
from bench.sim.experiments.service_gap import OPEN
from bench.sim.fairness import Scenario, Services, run_scenario
from bench.sim.ledger import percentile
from bench.sim.ours import PenstockSystem
from bench.sim.rows import Figures, Row, Task, at_least, at_most
from bench.sim.scenarios import loud_and_quiet
from bench.sim.yard import Basis

SLOTS = (1, 2, 4, 16, 128)
SECONDS = 60.0
QUANTUM_MS = 1_000


def tasks() -> list[Task]:
    """Return a task for each number of slots: the quiet tenant alone, then both without and with preemption."""
    return [Task("E9", (slots, how), one) for slots in SLOTS for how in ("alone", "off", "auto")]


def one(basis: Basis, slots: int, how: str) -> Figures:
    """Run one case; `how` is a value of PENSTOCK_PREEMPTION, or `alone` for a run without the loud tenant."""
    scenario = loud_and_quiet(slots, SECONDS, basis.seed, loud=how != "alone")
    environ = {**basis.environ, **OPEN, "PENSTOCK_PREEMPTION": "auto" if how == "alone" else how}
    with private_store() as store:
        store.config_set("appendonly", "no")
        (services,), jobs = run_scenario(PenstockSystem(store, environ), scenario)
    quiet = [job for job in jobs if job.tenant == "quiet"]
    return {
        "p99_ms": first_token_p99_ms(jobs),
        "loud_share": loud_share(services, scenario),
        "unanswered": sum(job.outcome != "succeeded" for job in quiet),
    }


def first_token_p99_ms(jobs: list[SimJob]) -> float:
    """Return the 99th percentile of the quiet tenant's times to the first token, in ms."""
    return percentile(
        (job.first_token_ms - job.at_ms for job in jobs if job.tenant == "quiet" and job.first_token_ms), 0.99
    )


def loud_share(services: Services, scenario: Scenario) -> float:
    """Return the loud tenant's service, as a part of the slots' time that the quiet one left."""
    served, slots = services.served[-1], scenario.slots
    whole_wt = GENERATED_WEIGHT * slots * services.moments[-1] / scenario.machine.takes_ms(slots, 0, 0)
    return served.get("loud", 0.0) / (whole_wt - served["quiet"])


def allowed_p99_ms(alone_ms: float, slots: int) -> float:
    """Return the longest time allowed: alone, a quarter of a quantum, with one slot one more quantum, and a pause.

    A pause takes up to two steps: a worker claims when a step has ended.
    """
    step_ms = Scenario((), {}, SECONDS, slots=slots).machine.takes_ms(slots, 0, 0)
    return alone_ms + 250 + (QUANTUM_MS if slots == 1 else 0) + 2 * step_ms


def rows(got: dict[tuple[Any, ...], Figures]) -> list[Row]:
    """Return two rows for each number of slots: the quiet tenant's first tokens, and what the loud one computed."""
    made = []
    for slots in sorted({key[0] for key in got}):
        alone, off, on = (got[slots, how] for how in ("alone", "off", "auto"))
        allowed_ms = allowed_p99_ms(alone["p99_ms"], slots)
        made += [
            Row(
                "E9",
                f"{slots} slots: p99 to the first token of a quiet tenant, alone {alone['p99_ms']:.0f} ms",
                f"<= {allowed_ms:.0f} ms",
                f"{on['p99_ms']:.0f} ms",
                at_most(on["p99_ms"], allowed_ms) and on["unanswered"] == 0,
                {"without preemption": f"{off['p99_ms']:.0f} ms"},
            ),
            Row(
                "E9",
                f"{slots} slots: the loud tenant's part of the time that the quiet one leaves",
                ">= .98",
                f"{on['loud_share']:.3f}",
                at_least(on["loud_share"], 0.98),
                {"without preemption": f"{off['loud_share']:.3f}"},
            ),
        ]
    return made
