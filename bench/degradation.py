"""Degradation on, with every tenant opted in, beside off: useful work, success and waste in virtual time.

Run: `python -m bench.degradation [--loads 2,5] [--patience 0.25] [--seconds 120] [--set PENSTOCK_NAME=VALUE]`;
docs/degradation.md says how to read it. The scripts are the real ones, the workers modelled. 1x is measured as in
bench/overload.py, with the deadlines of that page, unless `--one-x` names it in jobs a second.
"""

import argparse
from collections import Counter
from dataclasses import replace
from itertools import product
from typing import Any

from bench.common import environment, keep, private_store, show
from bench.sim.arrivals import Crowd, plan
from bench.sim.ledger import Window, judged, percentile, summary
from bench.sim.ours import Ours
from bench.sim.simulation import Simulation
from bench.sim.yard import WARM_UP_S, Basis, closed_loop, measure, run_ours
from shared.store import keys


def crowd(basis: Basis, load: float, patience: float) -> Crowd:
    """The fifty and five, all with this part of their patience."""
    usual = basis.crowd(load)
    deadlines = tuple((int(patience * deadline_ms), share) for deadline_ms, share in usual.deadlines)
    return replace(usual, deadlines=deadlines, light_deadline_ms=int(patience * usual.light_deadline_ms))


def one(basis: Basis, crowd: Crowd, seconds: float, environ: dict[str, str]) -> dict[str, Any]:
    """One run: the ledger's figures, and how many answers were cut, to what, at which tiers."""
    tiers: Counter[str] = Counter()

    def watched(simulation: Simulation) -> None:
        system = simulation.system
        assert isinstance(system, Ours)

        def look(now_ms: float, _: object) -> None:
            tiers[(system.client.hget(keys.books(Ours.slug), "tier") or b"0").decode()] += 1
            simulation.at(now_ms + 1_000, look)

        simulation.at(WARM_UP_S * 1_000, look)

    run = run_ours(basis, plan(crowd, seconds, basis.seed), seconds, environ=environ, events=watched)
    window = Window(WARM_UP_S * 1_000, seconds * 1_000)
    figures = summary(run, window, basis.capacity_wtps)
    asks = judged(run, window)
    cut = [ask for ask in asks if ask.cut_tokens and ask.in_time]
    names = ("useful", "waste", "success", "light_success", "heavy_success", "refusals", "ends", "ttft_p99_ms")
    return {name: figures[name] for name in names} | {
        "answers_per_s": sum(ask.in_time for ask in asks) / window.seconds,
        "whole_success": sum(ask.in_time and not ask.cut_tokens for ask in asks) / max(1, len(asks)),
        "cut": len(cut) / max(1, sum(ask.in_time for ask in asks)),
        "cut_median_to_tokens": percentile([ask.answer for ask in cut], 0.5) if cut else None,
        "cut_median_by_tokens": percentile([ask.cut_tokens for ask in cut], 0.5) if cut else None,
        "seconds_at_tier": dict(tiers),
    }


def main() -> None:
    """Each load with degradation off and on."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--loads", default="2,5")
    options.add_argument("--patience", default="1,0.25", help="parts of the usual deadlines of 10, 30 and 120 s")
    options.add_argument("--seconds", type=float, default=120.0)
    options.add_argument("--one-x", type=float, default=0.0)
    options.add_argument("--set", action="append", default=[], metavar="PENSTOCK_NAME=VALUE", help="a setting of ours")
    options.add_argument("--only", default="off,on")
    options.add_argument("--seed", type=int, default=11)
    chosen = options.parse_args()
    with private_store() as client:
        facts = environment(chosen.seed, client)
    show(facts)
    basis = closed_loop(chosen.seed)
    if chosen.one_x:
        basis = replace(basis, one_x_per_s=chosen.one_x)
    else:
        basis = measure(basis, lambda calls: [call() for call in calls])
    environ = dict(setting.split("=", 1) for setting in chosen.set)
    kept: dict[str, Any] = {"one_x_per_s": basis.one_x_per_s, "settings": environ}
    for load, patience, setting in product(chosen.loads.split(","), chosen.patience.split(","), chosen.only.split(",")):
        name = f"{load}x, {patience} of the patience, {setting}"
        asks_of = crowd(basis, float(load), float(patience))
        got = kept[name] = one(basis, asks_of, chosen.seconds, environ | {"PENSTOCK_DEGRADATION": setting})
        print(name, *(f"{figure}={value}" for figure, value in got.items()), flush=True)
    keep("degradation", facts, kept)


if __name__ == "__main__":
    main()
