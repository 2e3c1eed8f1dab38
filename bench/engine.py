"""Compares the engine with bare llama_decode and with a C++ server, on one machine, one model at a time.

Run: `make bench-engine`, or `python -m bench.engine` with options. Each load runs in several rounds; in each round
these run one after the other: (a) llama_decode alone; (b) a worker whose jobs are admitted and followed through the
store; (c) the same worker over HTTP; (d) a C++ llama.cpp server over HTTP with the same number of slots; (e) the same
server with backend sampling, if --server names a `llama-server`. A load that fills all slots is also run with default
sampling.
bench/README.md explains the figures.
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
from bench.common import environment, print_environment, write_results
from bench.engine_ceiling import Ceiling
from bench.engine_models import SHAPES, Load, Prompts, model_file, rounded
from bench.engine_peers import Peer
from bench.engine_picture import draw
from bench.engine_stack import Cpu, Stack, running
from shared.settings.settings import Settings, load

#: Answers that each client requests, by model, so that each model gets about the same amount of work. A load that
#: fills all slots gets twice as many, because its last answers run in steps that become emptier and emptier, which
#: never happens in the ceiling run.
_ANSWERS_PER_CLIENT = {"small": 8, "135m": 2, "1b": 2}

Cell = dict[str, Any]


def settings_of(chosen: argparse.Namespace, n_ctx: int) -> tuple[dict[str, str], Settings]:
    """Return the worker's settings as environment variables and as a Settings object."""
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
    """Yield every load that fits the slots. Larger models get long prompts, which take minutes, only with --all."""
    for prompt_tokens in chosen.prompts:
        for clients in chosen.clients:
            if clients > chosen.slots or (name != "small" and prompt_tokens > 256 and not chosen.all):
                continue
            answers = max(1, _ANSWERS_PER_CLIENT[name] // (4 if prompt_tokens > 256 else 1))
            answers *= 2 if clients >= chosen.slots else 1
            yield Load(clients, prompt_tokens, chosen.answer, chosen.turns or answers)
            if clients >= chosen.slots:
                yield Load(clients, prompt_tokens, chosen.answer, chosen.turns or answers, sampled=True)


class ModelServers:
    """All servers of one model. They run at once and get load in turn, so that noise on the machine affects all."""

    def __init__(self, ceiling: Ceiling, stack: Stack, peers: dict[str, Peer], prompts: Prompts) -> None:
        """Take the servers; `peers` are (d) and (e)."""
        self._ceiling, self._stack, self._peers, self._prompts = ceiling, stack, peers, prompts

    def run_round(self, load: Load) -> Cell:
        """Run (a) to (e) once. Return each one's tokens per second, and each process's CPU ms per job."""
        processes = dict(self._stack.processes)
        for name, peer in self._peers.items():
            processes |= {f"{kind} ({name})": process for kind, process in peer.processes.items()}
        cpu, answers = Cpu(processes), load.answer_tokens
        began = time.process_time()
        seconds = {"a": self._ceiling.run(load)}
        cpu_ms = {"a": {"llama_decode": 1000 * (time.process_time() - began) / load.jobs}}
        cpu.since()
        texts = self._texts(load)
        seconds["b"] = self._stack.run(texts, load.clients, load.prompt_tokens, answers, sampled=load.sampled)
        cpu_ms["b"] = _per_job(cpu.since(), load)
        texts = self._texts(load)
        seconds["c"] = engine_http.run(self._stack.port, texts, load.clients, answers, sampled=load.sampled)
        cpu_ms["c"] = _per_job(cpu.since(), load)
        for name, peer in self._peers.items():
            seconds[name] = engine_http.run(peer.port, texts, load.clients, answers, sampled=load.sampled)
            cpu_ms[name] = _per_job(cpu.since(), load)
        tps = {name: load.tokens / took for name, took in seconds.items()}
        return {"tokens_per_s": tps, "cpu_ms_per_job": cpu_ms, "load": os.getloadavg()[0]}

    def _texts(self, load: Load) -> list[str]:
        return [self._prompts.text(load.prompt_tokens) for _ in range(load.jobs)]


def _per_job(spent_s: dict[str, float], load: Load) -> dict[str, float]:
    return {name: 1000 * spent / load.jobs for name, spent in spent_s.items() if spent > 0}


def medians(rounds: list[Cell]) -> Cell:
    """Return the medians over the rounds. A ratio is the median of the rounds' ratios."""
    tps = [one["tokens_per_s"] for one in rounds]
    ratios = {
        f"{x}/{y}": statistics.median(one[x] / one[y] for one in tps)
        for x, y in ("ba", "ca", "cd", "bd", "ce")
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
    """Print one line of the table, and the CPU times below it."""
    tps = "".join(f"{cell['tokens_per_s'].get(run, float('nan')):10,.1f}" for run in "abcde")
    ratios = "".join(f"{cell['ratios'].get(ratio, float('nan')):7.2f}" for ratio in ("b/a", "c/a", "c/d"))
    kind = "default" if load.sampled else "greedy"
    print(f"{name:6}{load.prompt_tokens:7}{load.clients:8} {kind:8}{tps}  {ratios}{cell['load']:7.1f}", flush=True)
    for run in "abcde":
        if run in cell["cpu_ms_per_job"]:
            spent = ", ".join(f"{process} {ms:.1f}" for process, ms in cell["cpu_ms_per_job"][run].items())
            print(f"{'':21}({run}) CPU ms a job: {spent}")


def one_model(name: str, chosen: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Run all loads and all additional measurements of one model."""
    n_ctx = max(1024, -(-(max(chosen.prompts) + chosen.answer) // 256) * 256)
    environ, settings = settings_of(chosen, n_ctx)
    path = model_file(name, chosen.file_type, chosen.models_folder)
    ceiling = Ceiling(settings, path)
    print(f"# {ceiling.facts.sentence()}")
    prompts = Prompts(ceiling.count, chosen.seed)
    figures: dict[str, Any] = {"facts": ceiling.facts.as_dict(), "cells": {}}
    peers = {} if chosen.no_peer else {"d": Peer(path, ceiling.facts, chosen.server, folder / f"{name}-peer.log")}
    peer = peers.get("d")
    if chosen.server and peer is not None:
        log = folder / f"{name}-peer-bs.log"
        peers["e"] = Peer(path, ceiling.facts, chosen.server, log, backend_sampling=True)
    try:
        with running(folder, environ | {"PENSTOCK_MODEL": str(path)}) as stack:
            servers = ModelServers(ceiling, stack, peers, prompts)
            for load in cells_of(name, chosen):
                cell = medians([servers.run_round(load) for _ in range(chosen.rounds)])
                figures["cells"][load.name] = cell
                print_cell(name, load, cell)
            figures |= engine_extra.idle_slots(stack)
            if name == "small":
                figures |= engine_extra.idle_slots_under_load(stack, prompts, 2 * chosen.slots)
            figures |= engine_extra.first_tokens(ceiling, stack, peer, prompts, chosen.rounds)
            figures |= engine_extra.reuse(stack, prompts, chosen.rounds)
    finally:
        for each in peers.values():
            each.close()
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
    """Print the environment, measure model by model, and write table, JSON and picture."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument(
        "--models", default="small,135m", help=f"any of {', '.join(SHAPES)}, separated by commas; weights are random"
    )
    options.add_argument("--slots", type=int, default=16, help="slots of the worker and of the C++ server")
    options.add_argument("--clients", type=_numbers, default=[1, 4, 8, 16])
    options.add_argument("--prompts", type=_numbers, default=[64, 1024])
    options.add_argument("--answer", type=int, default=32)
    options.add_argument("--turns", type=int, default=0, help="answers for each client; 0: depends on model and prompt")
    options.add_argument("--rounds", type=int, default=3)
    options.add_argument("--threads", default="auto")
    options.add_argument("--step-target", default="auto", help="PENSTOCK_STEP_TARGET_MS of the worker")
    options.add_argument("--device", default="cpu")
    options.add_argument("--file-type", default="q8_0", choices=["f16", "f32", "q8_0"])
    options.add_argument("--long", type=int, default=8000, help="tokens of the prompt that joins seven short ones")
    options.add_argument(
        "--all", action="store_true", help="run long prompts (which take minutes) and extras for larger models, too"
    )
    options.add_argument("--server", type=Path, help="path of a llama-server; without it, xllamacpp is used")
    options.add_argument("--no-peer", action="store_true", help="do not run (d) and (e)")
    options.add_argument(
        "--no-extra", action="store_true", help="do not measure a long prompt beside short ones, nor two workers"
    )
    options.add_argument("--models-folder", type=Path, default=Path(tempfile.gettempdir()) / "penstock-bench-models")
    options.add_argument("--seed", type=int, default=1)
    options.add_argument("--name", default="engine", help="name of the result files")
    chosen = options.parse_args()
    facts = environment(chosen.seed)
    facts["options"] = {
        name: str(value) for name, value in vars(chosen).items() if name not in ("models_folder", "server")
    }
    print_environment(facts)
    print("# tokens/s: (a) llama_decode alone, (b) worker and store, (c) HTTP to worker, (d) C++ server, (e) with -bs")
    print(
        f"{'model':6}{'prompt':>7}{'clients':>8} {'sampling':8}"
        + "".join(f"{f'({run})':>10}" for run in "abcde")
        + f"  {'b/a':>7}{'c/a':>7}{'c/d':>7}{'load':>7}"
    )
    figures: dict[str, Any] = {}
    for name in chosen.models.split(","):
        if name not in SHAPES:
            options.error(f"{name} is not one of {', '.join(SHAPES)}")
        with tempfile.TemporaryDirectory() as folder:
            figures[name] = rounded(one_model(name, chosen, Path(folder)))
        # Results are written after each model, so that an interrupted run keeps those that it has.
        facts["load_after"] = os.getloadavg()
        path = write_results(chosen.name, facts, figures)
        draw(figures, path.with_name(f"{path.name.partition('.')[0]}.png"))


if __name__ == "__main__":
    main()
