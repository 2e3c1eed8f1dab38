"""The measured number of requests at once against the best fixed number: `python -m bench.upstream`, 20 minutes.

A llama-server with 2, 8 and 32 slots serves the demo model. The upstream engine sends it requests without pause, with
fixed numbers of requests at once and with the number that it measures itself. They take turns of a few seconds, so that
other work on the machine affects all alike. Then the server is stopped and continued every 20 ms, which makes it half
as fast. After 30 s of that, they take turns again. `--server` names the binary, which `python -m bench.engine_peers
--build FOLDER` builds; without it, the server of `xllamacpp` is used. The figures of each server are written when it is
done. `--trial` takes two minutes or three, and shows only that the program works.
"""

import argparse
import itertools
import random
import signal
import statistics
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.common import environment, print_environment, write_results
from bench.engine_peers import Peer
from shared.jobs.job import ClaimRef
from shared.log import configure
from shared.settings.settings import load
from workers.demo import demo_model_path
from workers.engine.backend import Facts
from workers.engine.events import Ended, Event, JobSpec
from workers.upstream.factory import make_upstream_engine

SEED = 11
#: The most requests at once, and the fixed numbers that are tried.
MOST, FIXED = 64, (1, 2, 4, 8, 16, 32, 64)
#: The least ratio of the measured to the best fixed number that is aimed at.
AIM = 0.8
#: Interval at which a slowed server is stopped or continued, in seconds.
_TOGGLE_S = 0.02
_STORY = "Once upon a time there was a little girl who had a red ball and a small dog. "


@dataclass(frozen=True)
class Times:
    """How long the parts of a run take, in seconds, and how many turns each number gets."""

    #: How long the number is measured before the turns begin.
    warm_up: float = 30.0
    turns: int = 4
    #: The part of a turn that is not measured, and the part that is.
    ramp: float = 1.0
    turn: float = 3.0


TRIAL = Times(warm_up=3.0, turns=1, ramp=0.2, turn=0.5)


class ClosedLoop:
    """An upstream engine that always has as many requests in flight as it takes."""

    def __init__(self, url: str, limit: int | None) -> None:
        environ = {
            "PENSTOCK_ENGINE": "upstream",
            "PENSTOCK_UPSTREAM_URL": url,
            "PENSTOCK_UPSTREAM_MODEL": "demo",
            "PENSTOCK_MAX_BATCH_SIZE": str(MOST),
            "PENSTOCK_UPSTREAM_CONCURRENCY": "auto" if limit is None else str(limit),
        }
        self._ended, self._stop = threading.Event(), threading.Event()
        self._numbers = itertools.count(SEED)
        # The engine's thread counts the ends, and this one the submitted jobs.
        self._lost = self._ends = self._submitted = 0
        self.engine = make_upstream_engine(load(environ=environ, dotenv=None), self._emit, on_ending=self._ended.set)
        self._thread = threading.Thread(target=self.engine.run, args=(self._stop,), daemon=True)
        self._thread.start()

    def _emit(self, event: Event) -> None:
        if isinstance(event, Ended):
            self._lost += event.outcome != "succeeded"
            self._ends += 1
            self._ended.set()

    def run(self, seconds: float) -> dict[str, float]:
        """Send requests for this long. Return tokens per second, the median number of slots, and what was lost."""
        until_s, before, slots = time.monotonic() + seconds, self.engine.stats.completion_tokens, [0]
        self._lost = 0
        while (now_s := time.monotonic()) < until_s:
            for _ in range(self.engine.free_capacity().slots):
                number = next(self._numbers)
                # Prompts differ from their first words on, so that the server cannot reuse an earlier one.
                payload = {"prompt": f"Story {number}. {_STORY * (1 + number % 4)}", "seed": number}
                spec = JobSpec(ClaimRef(str(number), "t"), "bench", payload, 24 + number * 7 % 48, now_s + 600)
                self.engine.submit(self.engine.prepare(spec))
                self._submitted += 1
            slots.append(self.engine.slots)
            self._ended.wait(0.05)
            self._ended.clear()
        tokens = self.engine.stats.completion_tokens - before
        return {"tokens_per_s": tokens / seconds, "slots": statistics.median(slots), "lost": self._lost}

    def take_turn(self, times: Times) -> dict[str, float]:
        """Send requests for one turn, and wait until all have ended."""
        self.run(times.ramp)
        figures = self.run(times.turn)
        while self._ends < self._submitted:
            self._ended.wait(0.05)
            self._ended.clear()
        return figures

    def close(self) -> None:
        """Stop the engine, which closes its requests."""
        self._stop.set()
        self.engine.wake()
        self._thread.join(10)


@contextmanager
def half_speed(peer: Peer) -> Iterator[None]:
    """Stop and continue the server all the time for the length of a block."""
    end, process = threading.Event(), peer.processes["server"]

    def toggle() -> None:
        for number in itertools.cycle((signal.SIGSTOP, signal.SIGCONT)):
            process.send_signal(number)
            if end.wait(_TOGGLE_S) and number is signal.SIGCONT:
                return

    thread = threading.Thread(target=toggle)
    thread.start()
    try:
        yield
    finally:
        end.set()
        thread.join()


def turns(loops: dict[str, ClosedLoop], times: Times, order: random.Random) -> dict[str, dict[str, float]]:
    """Let all loops take turns, in another order each time. Return the medians of each loop's figures."""
    taken: dict[str, list[dict[str, float]]] = {name: [] for name in loops}
    for _ in range(times.turns):
        for name in order.sample(sorted(loops), len(loops)):
            taken[name].append(loops[name].take_turn(times))
    return {name: {key: statistics.median(one[key] for one in rows) for key in rows[0]} for name, rows in taken.items()}


def judged(rows: dict[str, dict[str, float]], title: str) -> dict[str, Any]:
    """Print the figures of all loops, and return them with the ratio of the measured to the best fixed number."""
    own = rows["auto"]
    best = max((name for name in rows if name != "auto"), key=lambda name: rows[name]["tokens_per_s"])
    ratio = own["tokens_per_s"] / rows[best]["tokens_per_s"]
    shown = "  ".join(f"{name}: {row['tokens_per_s']:.0f}" for name, row in rows.items())
    verdict = f"{ratio:.2f} of the best, {best}: the aim of {AIM} is {'met' if ratio >= AIM else 'NOT met'}"
    print(f"{title}: {shown}; auto has {own['slots']:.0f} slots, and {verdict}", flush=True)
    return {"tokens_per_s": rows, "best_fixed": best, "ratio": ratio}


def compare(slots: int, server: Path | None, times: Times) -> dict[str, Any]:
    """Measure one server at its usual speed and at half of it."""
    facts = Facts("", "", "demo", n_ctx=512, cells=512 * slots, slots=slots, threads=2, prefill_chunk=512)
    order = random.Random(SEED)
    with tempfile.TemporaryDirectory() as folder:
        peer = Peer(demo_model_path(), facts, server, Path(folder) / "server.log")
        url = f"http://127.0.0.1:{peer.port}/v1"
        loops = {str(limit): ClosedLoop(url, limit) for limit in FIXED} | {"auto": ClosedLoop(url, None)}
        try:
            loops["auto"].run(times.warm_up)
            usual = judged(turns(loops, times, order), f"{slots} slots")
            with half_speed(peer):
                loops["auto"].run(times.warm_up)
                slow = judged(turns(loops, times, order), f"{slots} slots, half speed")
        finally:
            for loop in loops.values():
                loop.close()
            peer.close()
    return {"server": peer.name, "usual": usual, "half speed": slow}


def main() -> None:
    """Measure each server, print a table and write the figures."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--server", type=Path, help="a built llama-server")
    options.add_argument("--slots", type=int, nargs="*", default=[2, 8, 32])
    options.add_argument("--trial", action="store_true", help="measure each number once and briefly, write no results")
    chosen = options.parse_args()
    times = TRIAL if chosen.trial else Times()
    configure("error")
    facts = environment(SEED) | {"times_s": vars(times)}
    print_environment(facts)
    figures = {}
    for slots in chosen.slots:
        figures[str(slots)] = compare(slots, chosen.server, times)
        if not chosen.trial:
            write_results("upstream", facts, figures)


if __name__ == "__main__":
    main()
