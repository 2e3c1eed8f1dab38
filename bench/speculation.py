"""Measure what drafts from the prompt gain and cost: tokens per step and seconds, with and without, on three texts.

Run it with `python -m bench.speculation`. The engine is stepped without a store, with PENSTOCK_SPECULATION=auto and off
in turn. Whether a draft is accepted depends on the text only, so each answer is given: the model computes every step of
it and samples, but the next token is that of the given text. The texts are tokenized by the demo model.
"""

import argparse
import os
import random
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from bench.common import environment, print_environment, write_results
from bench.engine_models import model_file
from shared.clock import RealClock
from shared.jobs.job import ClaimRef
from shared.settings.settings import load
from workers.demo import demo_model_path
from workers.engine.backend import BatchRow, Prepared
from workers.engine.events import Ended, Event, JobSpec
from workers.engine.factory import make_engine
from workers.engine.loop import Engine
from workers.engine.sampling import Sampling

_NEVER_S = 1e12
#: Cells for each slot: more than the longest of the texts has tokens.
_CELLS = 1024
_NAMES = [
    "Ada",
    "Ben",
    "Cleo",
    "Dan",
    "Eve",
    "Finn",
    "Gus",
    "Hana",
    "Ivo",
    "Jill",
    "Kai",
    "Lena",
    "Max",
    "Nora",
    "Otto",
    "Pia",
]
_TOWNS = [
    "Bergen",
    "Cadiz",
    "Dover",
    "Essen",
    "Faro",
    "Ghent",
    "Hull",
    "Izmir",
    "Jena",
    "Kiel",
    "Lyon",
    "Malmo",
    "Nice",
    "Oslo",
    "Paris",
    "Riga",
]
_THINGS = ["boat", "kite", "lamp", "drum", "cart", "clock", "piano", "ladder", "bottle", "basket"]
_Pair = tuple[list[int], list[int]]


def story(engine: Engine, seed: int, events: list[Event]) -> str:
    """Return a story that the demo model tells."""
    name = _NAMES[seed % len(_NAMES)]
    payload = {"prompt": f"Once upon a time there was a girl named {name}.", "seed": seed, "temperature": 0.8}
    key = ClaimRef(str(seed), "t")
    engine.submit(engine.prepare(JobSpec(key, "blue", payload, 200, _NEVER_S)))
    while engine.step():
        pass
    ended = next(event for event in events if isinstance(event, Ended) and event.key == key)
    return f"{payload['prompt']}{ended.text}"


def texts(path: Path, seed: int, n: int) -> dict[str, list[_Pair]]:
    """Return pairs of a prompt and its answer for each kind of text, as tokens of the demo model."""
    events: list[Event] = []
    engine = make_engine(load({}, None, device="cpu"), events.append, model_path=path, clock=RealClock())
    vocabulary: Any = engine.backend
    dice = random.Random(seed)

    def pair(prompt: str, answer: str) -> _Pair:
        asked = vocabulary.tokenize(prompt, add_special=True, parse_special=False, param="prompt")
        said = vocabulary.tokenize(answer, add_special=False, parse_special=False, param="prompt")
        return asked.tolist(), said.tolist()

    found: dict[str, list[_Pair]] = {"editing": [], "extraction": [], "free": []}
    for i in range(n):
        told = story(engine, seed + i, events)
        name, other = _NAMES[(seed + i) % len(_NAMES)], dice.choice(_THINGS).title()
        found["editing"].append(pair(f"Call her {other}: {told}\n", told.replace(name, other)))
        found["free"].append(pair(told[:60], told[60:]))
        people = [
            (dice.choice(_NAMES), dice.choice(_TOWNS), dice.choice(_THINGS), dice.randint(10, 99)) for _ in range(9)
        ]
        prose = " ".join(f"{who} from {town} is {age} years old and has a {thing}." for who, town, thing, age in people)
        rows = "".join(
            f'{{"name": "{who}", "town": "{town}", "age": {age}, "has": "{thing}"}}\n'
            for who, town, thing, age in people
        )
        found["extraction"].append(pair(f"As JSON: {prose}\n", rows))
    engine.backend.close()
    return found


class Measured:
    """One engine, with drafts or without, whose answers are given."""

    def __init__(self, path: Path, slots: int, speculation: str, *, shared: bool) -> None:
        # The cache is shared if its slots cannot hold the longest job each.
        cells = slots * _CELLS - (slots if shared else 0)
        sizes = {"max_batch_size": slots, "n_ctx": _CELLS, "kv_cells": cells}
        settings = load({}, None, device="cpu", speculation=speculation, **sizes)
        self._open: set[ClaimRef] = set()
        #: Key of a job → the tokens of its given answer that are still to be sampled.
        self._given: dict[ClaimRef, Iterator[int]] = {}
        #: Keys of the jobs whose first token was sampled.
        self._began: set[ClaimRef] = set()
        self._n_jobs = 0
        self.engine = make_engine(settings, self._note, model_path=path, clock=RealClock())
        self._give_answers()

    def _give_answers(self) -> None:
        """Let the backend sample as usual, and return the next token of the given answer."""
        backend: Any = self.engine.backend
        open_slot, sample, keys = backend.open_slot, backend.sample, {}

        def open_noted(slot: int, job: Prepared, *rest: Any) -> None:
            keys[slot] = job.spec.key
            open_slot(slot, job, *rest)

        def sample_given(row: BatchRow, known: int | None = None) -> int:
            sample(row, known)
            self._began.add(keys[row.slot])
            return next(self._given[keys[row.slot]])

        backend.open_slot, backend.sample = open_noted, sample_given

    def _note(self, event: Event) -> None:
        if isinstance(event, Ended):
            self._open.discard(event.key)

    def run(self, pairs: list[_Pair]) -> dict[str, float]:
        """Compute all answers at once; return the seconds from the first token on, and the steps of that time."""
        self._began.clear()
        for prompt, answer in pairs:
            self._n_jobs += 1
            key = ClaimRef(str(self._n_jobs), "t")
            spec = JobSpec(key, key.id, {}, len(answer), _NEVER_S)
            sampling = Sampling(temperature=0.0, ignore_eos=True)
            self._given[key] = iter(answer)
            self._open.add(key)
            self.engine.submit(Prepared(spec, len(prompt), len(answer), sampling, np.array(prompt, np.int32)))
        stats = self.engine.stats
        while len(self._began) < len(pairs):
            self.engine.step()
        steps, began = stats.steps, time.perf_counter()
        accepted, rejected = stats.drafts_accepted, stats.drafts_rejected
        while self._open:
            self.engine.step()
        return {
            "seconds": time.perf_counter() - began,
            "steps": stats.steps - steps,
            "accepted": stats.drafts_accepted - accepted,
            "rejected": stats.drafts_rejected - rejected,
        }


def measure(path: Path, slots: int, kinds: dict[str, list[_Pair]], rounds: int, *, shared: bool) -> dict[str, Any]:
    """Return the figures of each kind of text. In each round, the two engines take turns in an order that changes."""
    engines = {name: Measured(path, slots, name, shared=shared) for name in ("auto", "off")}
    figures: dict[str, Any] = {}
    for kind, pairs in kinds.items():
        runs: dict[str, list[dict[str, float]]] = {"auto": [], "off": []}
        for turn in range(rounds):
            chosen = [pairs[(turn * slots + i) % len(pairs)] for i in range(slots)]
            for name in ("auto", "off") if turn % 2 else ("off", "auto"):
                runs[name].append(engines[name].run(chosen))
        tokens = [sum(len(pairs[(turn * slots + i) % len(pairs)][1]) for i in range(slots)) for turn in range(rounds)]
        figures[kind] = {
            "tokens_per_step": {name: sum(tokens) / sum(run["steps"] for run in each) for name, each in runs.items()},
            "seconds": {name: median(run["seconds"] for run in each) for name, each in runs.items()},
            "speed": median(off["seconds"] / on["seconds"] for on, off in zip(runs["auto"], runs["off"], strict=True)),
            "accepted": sum(run["accepted"] for run in runs["auto"]),
            "rejected": sum(run["rejected"] for run in runs["auto"]),
            "step_times": engines["auto"].engine.figures(),
        }
    for each in engines.values():
        each.engine.backend.close()
    return figures


def main() -> None:
    """Measure each model with one slot and with four, print a line for each kind of text, and write the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", nargs="+", default=["demo", "135m"])
    parser.add_argument("--slots", nargs="+", type=int, default=[1, 4], help="jobs of one kind at once")
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--folder", type=Path, default=Path("build/bench"), help="where the models are kept")
    parser.add_argument("--trial", action="store_true", help="write no results")
    chosen = parser.parse_args()
    facts = environment(chosen.seed)
    print_environment(facts)
    kinds = texts(demo_model_path(), chosen.seed, 8)
    found: dict[str, Any] = {}
    for name in chosen.models:
        path = demo_model_path() if name == "demo" else model_file(name, "q8_0", chosen.folder)
        for slots, shared in [(n, shared) for n in chosen.slots for shared in sorted({False, n > 1})]:
            where = f"{name}, {slots} at once, {'shared' if shared else 'split'} cache"
            found[where] = figures = measure(path, slots, kinds, chosen.rounds, shared=shared)
            facts["load_after"] = os.getloadavg()
            for kind, each in figures.items():
                per_step, seconds = each["tokens_per_step"], each["seconds"]
                print(
                    f"{where}, {kind}: {per_step['auto']:.2f} tokens a step instead of {per_step['off']:.2f}, "
                    f"{seconds['auto']:.3f} s instead of {seconds['off']:.3f} s, speed {each['speed']:.2f}; "
                    f"drafts {each['accepted']:.0f} accepted, {each['rejected']:.0f} rejected",
                    flush=True,
                )
    if not chosen.trial:
        write_results("speculation", facts, found)


if __name__ == "__main__":
    main()
