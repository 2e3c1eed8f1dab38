"""Count how many calls of tools fit their schemas: random schemas and prompts, the demo model and the worker's engine.

Run it with `python -m bench.tool_calls --write`. Each run is one chat with one to four tools whose schemas are random.
The program prints how the answers were, and its exit code is 1 if a call did not fit.
"""

import argparse
import contextlib
import sys
from collections import Counter
from random import Random
from typing import Any

from bench.common import environment, print_environment, write_results
from shared.jobs.job import ClaimRef
from shared.jobs.outcomes import EndCode
from shared.settings.settings import load
from tests.support.random_tools import Request, random_request, verdict
from workers.demo import demo_model_path
from workers.engine.events import Ended, Event, JobRejected, JobSpec
from workers.engine.llama.backend import load_backend
from workers.engine.loop import Engine
from workers.engine.stats import EngineSettings

_SLOTS, _CELLS_OF_A_SLOT, _NEVER_S = 8, 2048, 1e12
#: So many chats are submitted at once.
_AT_ONCE = 64


def choice_of(request: Request) -> str:
    """Return the choice among the tools; a named function counts as `named`."""
    choice = request.payload["tool_choice"]
    return choice if isinstance(choice, str) else "named"


def run(seed: int, runs: int) -> dict[str, Any]:
    """Let the demo model answer `runs` chats; return the counts of verdicts, and the faults.

    A request that is too long for the model's context is replaced by another. Raises JobRejected for any other reason.
    """
    rng = Random(seed)
    settings = load({}, None, device="cpu", max_batch_size=_SLOTS, kv_cells=_SLOTS * _CELLS_OF_A_SLOT, threads=1)
    ended: dict[ClaimRef, Ended] = {}

    def note(event: Event) -> None:
        if isinstance(event, Ended):
            ended[event.key] = event

    counts: dict[str, Counter[str]] = {"required": Counter(), "named": Counter(), "auto": Counter()}
    wrong: list[str] = []
    too_long = tools = tokens = answered = 0
    with contextlib.closing(load_backend(settings, demo_model_path())) as backend:
        engine = Engine(backend, EngineSettings(), note)
        while answered < runs:
            asked: dict[ClaimRef, Request] = {}
            while len(asked) < min(_AT_ONCE, runs - answered):
                request, key = random_request(rng), ClaimRef(str(answered + len(asked)), "t")
                try:
                    prepared = engine.prepare(_spec(key, request))
                except JobRejected as rejected:
                    if rejected.code != EndCode.CONTEXT_LENGTH_EXCEEDED:
                        raise
                    too_long += 1
                    continue
                engine.submit(prepared)
                asked[key] = request
            while engine.step():
                pass
            for key, request in asked.items():
                how, why = verdict(request, ended[key])
                counts[choice_of(request)][how] += 1
                wrong += [f"run {key.id}: {why}"] if why else []
                tools += len(request.schemas)
                tokens += ended.pop(key).usage.completion_tokens
            answered += len(asked)
            print(f"# {answered} of {runs}: {dict(sum(counts.values(), Counter()))}", flush=True)
    return {
        "runs": runs,
        "requests_too_long_for_the_context": too_long,
        "tools": tools,
        "completion_tokens": tokens,
        "all": dict(sum(counts.values(), Counter())),
        "by_choice": {choice: dict(found) for choice, found in counts.items()},
        "wrong": wrong,
    }


def _spec(key: ClaimRef, request: Request) -> JobSpec:
    return JobSpec(key, "bench", request.payload, request.payload["max_tokens"], _NEVER_S)


def main() -> None:
    """Run, print the counts, and write them if asked to."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--runs", type=int, default=1_000)
    parser.add_argument("--write", action="store_true", help="write the counts to bench/results")
    chosen = parser.parse_args()
    facts = environment(chosen.seed)
    print_environment(facts)
    figures = run(chosen.seed, chosen.runs)
    for name, figure in figures.items():
        print(f"{name}: {figure}")
    if chosen.write:
        write_results("tool-calls", facts, figures)
    sys.exit(1 if figures["all"].get("invalid") else 0)


if __name__ == "__main__":
    main()
