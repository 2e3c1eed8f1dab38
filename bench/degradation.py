"""Compares degradation on (every tenant opted in) with off: useful work, success and waste in virtual time.

Run: `python -m bench.degradation [--loads 2,5] [--patience 0.25] [--seconds 120] [--set PENSTOCK_NAME=VALUE]`.
docs/degradation.md explains the figures. The scripts are the real ones; the workers are modelled. The load 1x is
measured as in bench/overload.py, with the deadlines of docs/overload.md, unless `--one-x` sets it in jobs per second.
"""

import argparse
from collections import Counter
from dataclasses import replace
from itertools import product
from typing import Any

from bench.common import environment, print_environment, private_store, write_results
from bench.sim.arrivals import Crowd, plan
from bench.sim.ledger import Window, judged, percentile, summary
from bench.sim.ours import PenstockSystem
from bench.sim.simulation import Simulation
from bench.sim.yard import WARM_UP_S, Basis, closed_loop, measure, run_ours
from shared.store import keys
from shared.store.decode import text


def crowd(basis: Basis, load: float, patience: float) -> Crowd:
    """Return the usual crowd of 55 tenants, with all deadlines multiplied by `patience`."""
    usual = basis.crowd(load)
    deadlines = tuple((int(patience * deadline_ms), share) for deadline_ms, share in usual.deadlines)
    return replace(usual, deadlines=deadlines, light_deadline_ms=int(patience * usual.light_deadline_ms))


def one(basis: Basis, crowd: Crowd, seconds: float, environ: dict[str, str]) -> dict[str, Any]:
    """Run one case. Return the ledger's figures, how many answers were cut, to which length, and the tiers."""
    tiers: Counter[str] = Counter()

    def sample_tiers(simulation: Simulation) -> None:
        system = simulation.system
        assert isinstance(system, PenstockSystem)

        def sample(now_ms: float, _: object) -> None:
            tiers[text(system.client.hget(keys.books(PenstockSystem.slug), "tier") or b"0")] += 1
            simulation.at(now_ms + 1_000, sample)

        simulation.at(WARM_UP_S * 1_000, sample)

    run = run_ours(basis, plan(crowd, seconds, basis.seed), seconds, environ=environ, events=sample_tiers)
    window = Window(WARM_UP_S * 1_000, seconds * 1_000)
    figures = summary(run, window, basis.capacity_wtps)
    jobs = judged(run, window)
    cut = [job for job in jobs if job.cut_tokens and job.in_time]
    names = ("useful", "waste", "success", "light_success", "heavy_success", "refusals", "ends", "ttft_p99_ms")
    return {name: figures[name] for name in names} | {
        "answers_per_s": sum(job.in_time for job in jobs) / window.seconds,
        "whole_success": sum(job.in_time and not job.cut_tokens for job in jobs) / max(1, len(jobs)),
        "cut": len(cut) / max(1, sum(job.in_time for job in jobs)),
        "cut_median_to_tokens": percentile([job.answer for job in cut], 0.5) if cut else None,
        "cut_median_by_tokens": percentile([job.cut_tokens for job in cut], 0.5) if cut else None,
        "seconds_at_tier": dict(tiers),
    }


def main() -> None:
    """Run every load and deadline factor with degradation off and on."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--loads", default="2,5")
    options.add_argument("--patience", default="1,0.25", help="factors for the usual deadlines of 10, 30 and 120 s")
    options.add_argument("--seconds", type=float, default=120.0)
    options.add_argument("--one-x", type=float, default=0.0, help="1x in jobs per second; 0: measure it")
    options.add_argument(
        "--set", action="append", default=[], metavar="PENSTOCK_NAME=VALUE", help="a setting of Penstock"
    )
    options.add_argument("--only", default="off,on")
    options.add_argument("--seed", type=int, default=11)
    chosen = options.parse_args()
    with private_store() as client:
        facts = environment(chosen.seed, client)
    print_environment(facts)
    basis = closed_loop(chosen.seed)
    if chosen.one_x:
        basis = replace(basis, one_x_per_s=chosen.one_x)
    else:
        basis = measure(basis, lambda calls: [call() for call in calls])
    environ = dict(setting.split("=", 1) for setting in chosen.set)
    kept: dict[str, Any] = {"one_x_per_s": basis.one_x_per_s, "settings": environ}
    for load, patience, setting in product(chosen.loads.split(","), chosen.patience.split(","), chosen.only.split(",")):
        name = f"{load}x, {patience} of the patience, {setting}"
        tenants = crowd(basis, float(load), float(patience))
        got = kept[name] = one(basis, tenants, chosen.seconds, environ | {"PENSTOCK_DEGRADATION": setting})
        print(name, *(f"{figure}={value}" for figure, value in got.items()), flush=True)
    write_results("degradation", facts, kept)


if __name__ == "__main__":
    main()
