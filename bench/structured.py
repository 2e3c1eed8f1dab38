"""Measure how much another tenant's job is slowed down by four schemas or lists of tools that take long to compile.

Run it with `python -m bench.structured`. One tenant keeps four jobs in flight at one worker with a small random model;
each has a schema or tools of its own, which are compiled anew. Another tenant submits one job of 16 tokens at a time.
The same is measured with four equal jobs without schemas. The order of the measurements alternates.
"""

import argparse
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

from bench.common import environment, print_environment, write_results
from tests.support.processes import Stage
from tests.support.schemas import BOMBS, TOOL_BOMBS, Schema, bounded_integers, long_names
from workers.demo.random_gguf import write_random_model

_IN_FLIGHT, _TOKENS, _JOBS = 4, 16, 12

#: The schema of the first tenant's jobs, or the tools among which each of its answers must call one.
KINDS: dict[str, Schema | list[Schema] | None] = {
    "no schema": None,
    "400 bounded integers": bounded_integers(400),
    "long property names": long_names(7, 4_000),
    "a schema that is not compiled in time": BOMBS["multiples"],
    "16 tools": TOOL_BOMBS["many"][:16],
    "a tool that is not compiled in time": TOOL_BOMBS["multiples"],
    "a tool whose argument is ambiguous": TOOL_BOMBS["ambiguous"],
}


def _payload(kind: Schema | list[Schema] | None, serial: int) -> dict[str, Any]:
    """Return the payload of a job of the first tenant. Its grammar is in no cache of compiled grammars."""
    payload: dict[str, Any] = {"prompt": "dibo kufe", "seed": serial}
    if isinstance(kind, list):
        first = kind[0]["function"] | {"name": f"f{time.monotonic_ns()}"}
        tools = [{"type": "function", "function": first}, *kind[1:]]
        messages = [{"role": "user", "content": "dibo kufe"}]
        return {"messages": messages, "seed": serial, "tools": tools, "tool_choice": "required"}
    if kind is not None:
        own = kind | {"title": f"{time.monotonic_ns()}"}
        payload["response_format"] = {"type": "json_schema", "json_schema": {"schema": own}}
    return payload


def latencies(stage: Stage, kind: Schema | list[Schema] | None, jobs: int) -> list[float]:
    """Return how long each of the other tenant's jobs took, in ms."""
    serial = 0
    flying: list[str] = []
    found: list[float] = []
    for _ in range(jobs):
        states = stage.jobs(flying)
        flying = [view.id for view in states if view.ended_ms is None]
        while len(flying) < _IN_FLIGHT:
            serial += 1
            payload = _payload(kind, serial)
            flying.append(stage.admit("red", model="m", payload=payload, max_tokens=_TOKENS))
        payload = {"prompt": "dibo kufe", "seed": 1}
        began = time.monotonic()
        job = stage.admit("blue", model="m", payload=payload, max_tokens=_TOKENS)
        stage.ended(job, timeout_s=120)
        found.append(1000 * (time.monotonic() - began))
    stage.ended(*flying, timeout_s=120)
    return found


def main() -> None:
    """Measure each kind in turn, twice, and write the medians."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=_JOBS, help="jobs of the other tenant for each kind and round")
    jobs = parser.parse_args().jobs
    facts = environment(1)
    print_environment(facts)
    taken: dict[str, list[float]] = {kind: [] for kind in KINDS}
    with tempfile.TemporaryDirectory() as folder:
        model = Path(folder) / "m.gguf"
        write_random_model(model)
        with Stage(Path(folder), PENSTOCK_ENGINE="llama", PENSTOCK_ADMISSION="bounds") as stage:
            stage.worker(PENSTOCK_MODEL=str(model), PENSTOCK_MAX_BATCH_SIZE="8", PENSTOCK_KV_CELLS="16384")
            latencies(stage, None, 2)
            for kinds in (list(KINDS), list(reversed(KINDS))):
                for kind in kinds:
                    taken[kind] += latencies(stage, KINDS[kind], jobs)
    base = median(taken["no schema"])
    figures = {
        kind: {"median_ms": round(median(ms), 1), "worst_ms": round(max(ms), 1), "ratio": round(median(ms) / base, 2)}
        for kind, ms in taken.items()
    }
    for kind, row in figures.items():
        print(f"{kind:40} {row}")
    print(write_results("structured", facts, figures))


if __name__ == "__main__":
    main()
