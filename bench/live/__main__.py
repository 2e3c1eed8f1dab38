"""Runs E1 and E3 at 1x and 10x with real processes: `python -m bench.live`, about twelve minutes.

The fleet is small, so that two cores suffice; lengths are divided by what `Scale` says. Work is not judged by the
engine's own counters here: useful work is that of the answers that came back in time, against what all slots can
do: by the timetable of sim, or as B4 does it with always more asks than slots, where the model is real.
"""

import argparse
import asyncio
from collections import Counter
from typing import Any

import numpy as np

from bench.common import environment, keep, show
from bench.live.sender import send_all, send_in_turns
from bench.live.stack import Scale, running
from bench.sim.arrivals import DEADLINES, Crowd, number, plan
from bench.sim.asks import Ask
from bench.sim.ledger import Window, first_token_waits, judged, percentile, success, useful_wtps
from bench.sim.shapes import gamma_times

SEED = 11
SECONDS, WARM_UP_S, MEASURE_S = 80.0, 20.0, 50.0
#: 1x here, of what the slots could do: below it nothing is refused on a quiet machine.
ONE_X = 0.9
LOADS = (1.0, 10.0)
#: Where the model is real, it is the demo model, which ends its stories itself; a prompt of the trace fits a tenth.
SCALES = {"sim": Scale(), "llama": Scale("llama", workers=1, slots=16, answers_by=1.0, max_tokens=512)}


def scaled(asks: list[Ask], scale: Scale) -> list[Ask]:
    """The same plan for a small fleet."""
    for ask in asks:
        ask.prompt = max(1, round(ask.prompt / scale.prompts_by))
        ask.answer = max(1, round(ask.answer / scale.answers_by))
        ask.max_tokens = scale.max_tokens or ask.answer
        ask.deadline_ms = round(ask.deadline_ms / scale.deadlines_by)
    return asks


Capacity = tuple[float, float]


def capacity(scale: Scale) -> Capacity:
    """Jobs and weighted tokens per second of all slots, always full."""
    if scale.engine != "sim":
        return _measured(scale)
    some = scaled(plan(Crowd(100.0), 100.0, SEED), scale)
    stay_s = sum(ask.prompt / scale.prefill_tps + ask.answer / scale.decode_tps for ask in some) / len(some)
    per_s = scale.all_slots / stay_s
    return per_s, per_s * sum(ask.cost_wt for ask in some) / len(some)


def _measured(scale: Scale) -> Capacity:
    asks = scaled(plan(Crowd(200.0), 60.0, SEED), scale)
    for ask in asks:
        ask.deadline_ms = 120_000
    with running("B4", scale) as port:
        done = asyncio.run(send_in_turns(port, asks, 2 * scale.all_slots, MEASURE_S))
    window = Window(WARM_UP_S * 1_000, MEASURE_S * 1_000)
    ended = sum(ask.in_time and window.holds(ask.ended_ms) for ask in done.asks)
    return ended / window.seconds, useful_wtps(done, window)


def e1(name: str, load: float, scale: Scale, able: Capacity) -> dict[str, Any]:
    """Ten tenants by Zipf and two light ones."""
    per_s, wtps = able
    crowd = Crowd(
        load * ONE_X * per_s, light_rate_per_s=0.5 * per_s / 12, tenants=10, light_tenants=2, deadlines=DEADLINES
    )
    asks = scaled(plan(crowd, SECONDS, SEED), scale)
    with running(name, scale) as port:
        done = asyncio.run(send_all(port, asks, SECONDS))
    window = Window(WARM_UP_S * 1_000, SECONDS * 1_000)
    fates = judged(done, window)
    lag = [ask.sent_ms - ask.at_ms for ask in asks]
    return {
        "useful": useful_wtps(done, window) / wtps,
        "success": success(fates),
        "light_success": success([ask for ask in fates if ask.light]),
        "expired": sum(ask.outcome == "expired" for ask in fates) / len(fates),
        "refused": sum(ask.gave_up_ms is not None for ask in fates) / len(fates),
        "refusal_p99_ms": percentile([a.gave_up_ms - a.sent_ms for a in fates if a.gave_up_ms is not None], 0.99),
        "sent_late_p99_ms": percentile(lag, 0.99),
        "light_fates": dict(Counter(ask.refusal or ask.outcome for ask in fates if ask.light)),
    }


def e3(name: str, times: float, scale: Scale, able: Capacity) -> dict[str, Any]:
    """A quiet tenant at 15 % of the capacity, beside one with so many times as much."""
    per_s, _ = able
    asks: list[Ask] = []
    for tenant, rate in (("quiet", 0.15), ("loud", 0.15 * times)):
        rng = np.random.default_rng([SEED, len(tenant)])
        at_s = gamma_times(rng, rate * per_s, SECONDS, 1.09)
        prompts, answers = Crowd(1.0).shape.lengths(rng, len(at_s), longest=(7_000, 1_024))
        asks += [
            Ask(0, tenant, float(at) * 1_000, prompt, answer, answer, 30_000, light=tenant == "quiet")
            for at, prompt, answer in zip(at_s, prompts, answers, strict=True)
        ]
    with running(name, scale) as port:
        done = asyncio.run(send_all(port, scaled(number(asks), scale), SECONDS))
    quiet = [ask for ask in judged(done, Window(WARM_UP_S * 1_000, SECONDS * 1_000)) if ask.light]
    return {
        "success": success(quiet),
        "answer_p99_ms": percentile(first_token_waits(quiet), 0.99),
        "jobs": len(quiet),
        "fates": dict(Counter(ask.refusal or ask.outcome for ask in quiet)),
    }


def main() -> None:
    """Environment first; ours and B4 in turns."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--engine", choices=sorted(SCALES), default="sim")
    scale = SCALES[options.parse_args().engine]
    facts = environment(SEED) | {"scale": vars(scale)}
    show(facts)
    able = capacity(scale)
    print(f"# capacity: {able[0]:.2f} jobs/s, {able[1]:.0f} weighted tokens/s")
    figures: dict[str, dict[str, Any]] = {"capacity": {"jobs_per_s": able[0], "wtps": able[1]}}
    for load in LOADS:
        for name in ("ours", "B4"):
            figures[f"E1 {name} {load:g}x"] = e1(name, load, scale, able)
            figures[f"E3 {name} beside {load:g} times its load"] = e3(name, load, scale, able)
    for what, seen in sorted(figures.items()):
        shown = "  ".join(
            f"{key} {value:.3f}" if isinstance(value, float) else f"{key} {value}" for key, value in seen.items()
        )
        print(f"{what:40} {shown}")
    keep("overload-live" if scale.engine == "sim" else f"overload-live-{scale.engine}", facts, figures)


if __name__ == "__main__":
    main()
