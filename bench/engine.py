"""The engine beside its ceiling and a C++ server: one run, one machine, one model at a time.

Run: `make bench-engine`, or `python -m bench.engine` with options. For each load, in turn and several
rounds: (a) llama_decode alone; (b) a worker fed and followed over the store; (c) the same worker over
HTTP; (d) a C++ llama.cpp server over HTTP with as many slots. bench/README.md says how to read it.
"""

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bench import engine_extra, engine_http
from bench.common import environment, keep, show
from bench.engine_ceiling import Ceiling
from bench.engine_models import SHAPES, Load, Prompts, kept, model_file
from bench.engine_peers import Peer
from bench.engine_picture import draw
from bench.engine_stack import Cpu, Stack, running
from shared.settings.settings import Settings, load

#: Turns of each client by model: about as much work in each. A full load gets twice as many: its last answers run in
#: ever emptier steps, which those of the ceiling never are.
_TURNS = {"small": 8, "135m": 2, "1b": 2}

Cell = dict[str, Any]


def settings_of(chosen: argparse.Namespace, n_ctx: int) -> tuple[dict[str, str], Settings]:
    """The worker's settings, as environment and as read."""
    environ = {
        "PENSTOCK_DEVICE": chosen.device,
        "PENSTOCK_MAX_BATCH_SIZE": str(chosen.slots),
        "PENSTOCK_N_CTX": str(n_ctx),
        "PENSTOCK_KV_CELLS": str(chosen.slots * n_ctx),
        "PENSTOCK_THREADS": str(chosen.threads),
        "PENSTOCK_STEP_TARGET_MS": str(chosen.step_target),
        "PENSTOCK_MAX_INFLIGHT": "1000",
        "PENSTOCK_MAX_QUEUE_SIZE": "1000",
        "PENSTOCK_MAX_QUEUE_TOKENS": str(10**8),
    }
    return environ, load(environ, None)


def cells_of(name: str, chosen: argparse.Namespace) -> Iterator[Load]:
    """Every load of a model that its slots can run; long prompts to larger models, which take minutes, with --all."""
    for prompt_tokens in chosen.prompts:
        for clients in chosen.clients:
            if clients > chosen.slots or (name != "small" and prompt_tokens > 256 and not chosen.all):
                continue
            turns = max(1, _TURNS[name] // (4 if prompt_tokens > 256 else 1)) * (2 if clients >= chosen.slots else 1)
            turns = chosen.turns or turns
            yield Load(clients, prompt_tokens, chosen.answer, turns)


class Bench:
    """Everything of one model, up at once and used in turn, so that a busy minute falls on all alike."""

    def __init__(self, ceiling: Ceiling, stack: Stack, peer: Peer | None, prompts: Prompts) -> None:
        self._ceiling, self._stack, self._peer, self._prompts = ceiling, stack, peer, prompts

    def round_of(self, load: Load) -> Cell:
        """Tokens a second of each, and CPU ms a job of each process."""
        processes = self._stack.processes | ({} if self._peer is None else self._peer.processes)
        cpu, answers = Cpu(processes), load.answer_tokens
        began = time.process_time()
        seconds = {"a": self._ceiling.run(load)}
        cpu_ms = {"a": {"llama_decode": 1000 * (time.process_time() - began) / load.jobs}}
        cpu.since()
        texts = self._texts(load)
        seconds["b"] = self._stack.run(texts, load.clients, load.prompt_tokens, answers)
        cpu_ms["b"] = _per_job(cpu.since(), load)
        texts = self._texts(load)
        seconds["c"] = engine_http.run(self._stack.port, texts, load.clients, answers)
        cpu_ms["c"] = _per_job(cpu.since(), load)
        if self._peer is not None:
            seconds["d"] = engine_http.run(self._peer.port, texts, load.clients, answers)
            cpu_ms["d"] = _per_job(cpu.since(), load)
        tps = {name: load.tokens / took for name, took in seconds.items()}
        return {"tokens_per_s": tps, "cpu_ms_per_job": cpu_ms, "load": os.getloadavg()[0]}

    def _texts(self, load: Load) -> list[str]:
        return [self._prompts.text(load.prompt_tokens) for _ in range(load.jobs)]


def _per_job(spent_s: dict[str, float], load: Load) -> dict[str, float]:
    return {name: 1000 * spent / load.jobs for name, spent in spent_s.items() if spent > 0}


def middle(rounds: list[Cell]) -> Cell:
    """Medians over the rounds; a ratio is the median of the rounds' ratios."""
    tps = [one["tokens_per_s"] for one in rounds]
    ratios = {
        f"{x}/{y}": statistics.median(one[x] / one[y] for one in tps)
        for x, y in ("ba", "ca", "cd", "bd")
        if {x, y} <= set(tps[0])
    }
    processes = {(run, name) for one in rounds for run, spent in one["cpu_ms_per_job"].items() for name in spent}
    cpu: dict[str, dict[str, float]] = {}
    for run, name in sorted(processes):
        spent = [one["cpu_ms_per_job"][run].get(name, 0.0) for one in rounds]
        cpu.setdefault(run, {})[name] = statistics.median(spent)
    return {
        "tokens_per_s": {name: statistics.median(one[name] for one in tps) for name in tps[0]},
        "ratios": ratios,
        "cpu_ms_per_job": cpu,
        "load": max(one["load"] for one in rounds),
        "rounds": rounds,
    }


def print_cell(name: str, load: Load, cell: Cell) -> None:
    """One line of the table, and one of CPU times."""
    tps = "".join(f"{cell['tokens_per_s'].get(run, float('nan')):10,.1f}" for run in "abcd")
    ratios = "".join(f"{cell['ratios'].get(ratio, float('nan')):7.2f}" for ratio in ("b/a", "c/a", "c/d"))
    print(f"{name:6}{load.prompt_tokens:7}{load.clients:8}{tps}  {ratios}{cell['load']:7.1f}", flush=True)
    for run in "abcd":
        if run in cell["cpu_ms_per_job"]:
            spent = ", ".join(f"{process} {ms:.1f}" for process, ms in cell["cpu_ms_per_job"][run].items())
            print(f"{'':21}({run}) CPU ms a job: {spent}")


def one_model(name: str, chosen: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """All loads of one model, and what else is measured of it."""
    n_ctx = max(1024, -(-(max(chosen.prompts) + chosen.answer) // 256) * 256)
    environ, settings = settings_of(chosen, n_ctx)
    path = model_file(name, chosen.file_type, chosen.models_folder)
    ceiling = Ceiling(settings, path)
    print(f"# {ceiling.facts.sentence()}")
    prompts = Prompts(ceiling.count, chosen.seed)
    figures: dict[str, Any] = {"facts": ceiling.facts.as_dict(), "cells": {}}
    peer = None if chosen.no_peer else Peer(path, ceiling.facts, chosen.server, folder / f"{name}-peer.log")
    try:
        with running(folder, environ | {"PENSTOCK_MODEL": str(path)}) as stack:
            bench = Bench(ceiling, stack, peer, prompts)
            for load in cells_of(name, chosen):
                cell = middle([bench.round_of(load) for _ in range(chosen.rounds)])
                figures["cells"][f"{load.prompt_tokens} x {load.clients}"] = cell
                print_cell(name, load, cell)
            figures |= engine_extra.idle_slots(stack)
            if name == "small":
                figures |= engine_extra.idle_slots_under_load(stack, prompts, 2 * chosen.slots)
            figures |= engine_extra.first_tokens(ceiling, stack, peer, prompts, chosen.rounds)
            figures |= engine_extra.reuse(stack, prompts, chosen.rounds)
    finally:
        if peer is not None:
            peer.close()
        ceiling.close()
    if "peer" not in figures and peer is not None:
        figures["peer"] = peer.name
    if not chosen.no_extra and (name == "small" or chosen.all):
        figures |= engine_extra.long_beside_short(chosen, path, name)
        figures |= engine_extra.two_workers(chosen, path, name, folder)
    return figures


def _numbers(text: str) -> list[int]:
    return [int(word) for word in text.split(",")]


def main() -> None:
    """Environment first, then model by model, the table, JSON and a picture."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--models", default="small,135m", help=f"of {', '.join(SHAPES)}; weights are random")
    options.add_argument("--slots", type=int, default=16, help="of the worker and of the C++ server")
    options.add_argument("--clients", type=_numbers, default=[1, 4, 8, 16])
    options.add_argument("--prompts", type=_numbers, default=[64, 1024])
    options.add_argument("--answer", type=int, default=32)
    options.add_argument("--turns", type=int, default=0, help="answers for each client; 0: by model and prompt")
    options.add_argument("--rounds", type=int, default=3)
    options.add_argument("--threads", default="auto")
    options.add_argument("--step-target", default="auto", help="PENSTOCK_STEP_TARGET_MS of the worker")
    options.add_argument("--device", default="cpu")
    options.add_argument("--file-type", default="q8_0", choices=["f16", "f32", "q8_0"])
    options.add_argument("--long", type=int, default=8000, help="tokens of the prompt that joins seven short ones")
    options.add_argument(
        "--all", action="store_true", help="of larger models, too: long prompts, which take minutes, and the extras"
    )
    options.add_argument("--server", type=Path, help="a llama-server; without it xllamacpp")
    options.add_argument("--no-peer", action="store_true")
    options.add_argument("--no-extra", action="store_true", help="no long beside short, no two workers")
    options.add_argument("--models-folder", type=Path, default=Path(tempfile.gettempdir()) / "penstock-bench-models")
    options.add_argument("--seed", type=int, default=1)
    options.add_argument("--name", default="engine", help="of the results")
    chosen = options.parse_args()
    facts = environment(chosen.seed)
    facts["options"] = {
        name: str(value) for name, value in vars(chosen).items() if name not in ("models_folder", "server")
    }
    show(facts)
    print("# tokens a second: (a) llama_decode alone, (b) worker and store, (c) HTTP to worker, (d) C++ server")
    print(
        f"{'model':6}{'prompt':>7}{'clients':>8}"
        + "".join(f"{f'({run})':>10}" for run in "abcd")
        + f"  {'b/a':>7}{'c/a':>7}{'c/d':>7}{'load':>7}"
    )
    figures: dict[str, Any] = {}
    for name in chosen.models.split(","):
        if name not in SHAPES:
            options.error(f"{name} is not one of {', '.join(SHAPES)}")
        with tempfile.TemporaryDirectory() as folder:
            figures[name] = kept(one_model(name, chosen, Path(folder)))
        # After each model: a run that is cut short leaves what it has.
        facts["load_after"] = os.getloadavg()
        path = keep(chosen.name, facts, figures)
        draw(figures, path.with_suffix(".png"))


if __name__ == "__main__":
    main()
