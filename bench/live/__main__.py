"""Runs E1 and E3 at 1x and 10x with real processes: `python -m bench.live`, about twelve minutes.

The fleet is small, so that two cores suffice; `Scale` divides prompts, answers and deadlines accordingly. The engine's
own counters are not used. Useful work is the work of the answers that arrived in time, relative to the capacity of all
slots. For `sim` the capacity is computed from its speed. For a real model it is measured on B4, with more requests
than slots at all times.
"""

import argparse
import asyncio
from collections import Counter
from typing import Any

import numpy as np

from bench.common import environment, print_environment, write_results
from bench.live.sender import send_all, send_in_turns
from bench.live.stack import Scale, running
from bench.sim.arrivals import DEADLINES, Crowd, number, plan
from bench.sim.asks import SimJob
from bench.sim.ledger import Window, first_token_waits, judged, percentile, success, useful_wtps
from bench.sim.shapes import gamma_times

SEED = 11
SECONDS, WARM_UP_S, MEASURE_S = 80.0, 20.0, 50.0
#: The load 1x, as a share of the capacity. Up to this load, nothing is refused on a quiet machine.
ONE_X = 0.9
LOADS = (1.0, 10.0)
#: The real model is the demo model, which ends its stories itself. A tenth of a trace's prompt fits its context.
SCALES = {"sim": Scale(), "llama": Scale("llama", workers=1, slots=16, answers_by=1.0, max_tokens=512)}


def scaled(jobs: list[SimJob], scale: Scale) -> list[SimJob]:
    """Scale the lengths and deadlines of a plan down to a small fleet, in place, and return the plan."""
    for job in jobs:
        job.prompt = max(1, round(job.prompt / scale.prompts_by))
        job.answer = max(1, round(job.answer / scale.answers_by))
        job.max_tokens = scale.max_tokens or job.answer
        job.deadline_ms = round(job.deadline_ms / scale.deadlines_by)
    return jobs


Capacity = tuple[float, float]


def capacity(scale: Scale) -> Capacity:
    """Return the jobs and the weighted tokens per second of the fleet with every slot always full."""
    if scale.engine != "sim":
        return _measured_capacity(scale)
    sample = scaled(plan(Crowd(100.0), 100.0, SEED), scale)
    residence_s = sum(job.prompt / scale.prefill_tps + job.answer / scale.decode_tps for job in sample) / len(sample)
    per_s = scale.all_slots / residence_s
    return per_s, per_s * sum(job.cost_wt for job in sample) / len(sample)


def _measured_capacity(scale: Scale) -> Capacity:
    jobs = scaled(plan(Crowd(200.0), 60.0, SEED), scale)
    for job in jobs:
        job.deadline_ms = 120_000
    with running("B4", scale) as port:
        done = asyncio.run(send_in_turns(port, jobs, 2 * scale.all_slots, MEASURE_S))
    window = Window(WARM_UP_S * 1_000, MEASURE_S * 1_000)
    ended = sum(job.in_time and window.holds(job.ended_ms) for job in done.jobs)
    return ended / window.seconds, useful_wtps(done, window)


def open_loop(name: str, load: float, scale: Scale, fleet_capacity: Capacity) -> dict[str, Any]:
    """Run E1 on one system at one load, with ten tenants that share the load by Zipf and two light tenants."""
    per_s, wtps = fleet_capacity
    crowd = Crowd(
        load * ONE_X * per_s, light_rate_per_s=0.5 * per_s / 12, tenants=10, light_tenants=2, deadlines=DEADLINES
    )
    jobs = scaled(plan(crowd, SECONDS, SEED), scale)
    with running(name, scale) as port:
        done = asyncio.run(send_all(port, jobs, SECONDS))
    window = Window(WARM_UP_S * 1_000, SECONDS * 1_000)
    decided = judged(done, window)
    lag = [job.sent_ms - job.at_ms for job in jobs]
    return {
        "useful": useful_wtps(done, window) / wtps,
        "success": success(decided),
        "light_success": success([job for job in decided if job.light]),
        "expired": sum(job.outcome == "expired" for job in decided) / len(decided),
        "refused": sum(job.gave_up_ms is not None for job in decided) / len(decided),
        "refusal_p99_ms": percentile([a.gave_up_ms - a.sent_ms for a in decided if a.gave_up_ms is not None], 0.99),
        "sent_late_p99_ms": percentile(lag, 0.99),
        "light_fates": dict(Counter(job.refusal or job.outcome for job in decided if job.light)),
    }


def noisy_neighbor(name: str, times: float, scale: Scale, fleet_capacity: Capacity) -> dict[str, Any]:
    """Run E3 on one system: a quiet tenant at 15 % of the capacity, beside one with `times` as much load."""
    per_s, _ = fleet_capacity
    jobs: list[SimJob] = []
    for tenant, rate in (("quiet", 0.15), ("loud", 0.15 * times)):
        rng = np.random.default_rng([SEED, len(tenant)])
        at_s = gamma_times(rng, rate * per_s, SECONDS, 1.09)
        prompts, answers = Crowd(1.0).shape.lengths(rng, len(at_s), longest=(7_000, 1_024))
        jobs += [
            SimJob(0, tenant, float(at) * 1_000, prompt, answer, answer, 30_000, light=tenant == "quiet")
            for at, prompt, answer in zip(at_s, prompts, answers, strict=True)
        ]
    with running(name, scale) as port:
        done = asyncio.run(send_all(port, scaled(number(jobs), scale), SECONDS))
    quiet = [job for job in judged(done, Window(WARM_UP_S * 1_000, SECONDS * 1_000)) if job.light]
    return {
        "success": success(quiet),
        "answer_p99_ms": percentile(first_token_waits(quiet), 0.99),
        "jobs": len(quiet),
        "fates": dict(Counter(job.refusal or job.outcome for job in quiet)),
    }


def main() -> None:
    """Print the environment, run Penstock and B4 alternately, and write the figures."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--engine", choices=sorted(SCALES), default="sim")
    scale = SCALES[options.parse_args().engine]
    facts = environment(SEED) | {"scale": vars(scale)}
    print_environment(facts)
    fleet_capacity = capacity(scale)
    per_s, wtps = fleet_capacity
    print(f"# capacity: {per_s:.2f} jobs/s, {wtps:.0f} weighted tokens/s")
    figures: dict[str, dict[str, Any]] = {"capacity": {"jobs_per_s": per_s, "wtps": wtps}}
    for load in LOADS:
        for name in ("ours", "B4"):
            figures[f"E1 {name} {load:g}x"] = open_loop(name, load, scale, fleet_capacity)
            figures[f"E3 {name} beside {load:g} times its load"] = noisy_neighbor(name, load, scale, fleet_capacity)
    for title, values in sorted(figures.items()):
        line = "  ".join(
            f"{key} {value:.3f}" if isinstance(value, float) else f"{key} {value}" for key, value in values.items()
        )
        print(f"{title:40} {line}")
    write_results("overload-live" if scale.engine == "sim" else f"overload-live-{scale.engine}", facts, figures)


if __name__ == "__main__":
    main()
