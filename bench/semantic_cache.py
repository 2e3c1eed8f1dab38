"""Measures what the semantic cache lets through: `python -m bench.semantic_cache MODEL.gguf`, about a minute.

200 pairs of prompts that look alike and ask different things (bench/near_misses.jsonl), and 200 that ask the same in
other words (bench/paraphrases.jsonl), were written by somebody who saw neither the code nor any result. A door with an
embedding worker (`penstock up`) embeds them. A pair is a hit if the vectors are as similar as the threshold says and
the guard agrees. One half of each set, by a fixed seed, was looked at while the guard was improved; the other was not.
`penstock model minilm MODEL.gguf` writes the model. bench/README.md explains the figures.
"""

import argparse
import json
import random
import statistics
import tempfile
import time
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx

from bench.common import environment, print_environment, print_rows, write_results
from bench.engine_stack import free_port
from bench.live.stack import served_process
from web.runtime.answer_vectors import SCOPE_BYTES, AnswerVectors, packed
from web.semantic_cache.guard import difference

SETS = {name: Path(__file__).parent / f"{name}.jsonl" for name in ("near_misses", "paraphrases")}
#: The seed that divides the sets, and how many pairs of each may be looked at.
SEED, DEVELOPMENT = 27, 100
THRESHOLDS = (0.7, 0.8, 0.85, 0.9, 0.95)
#: The earlier prompts of one look-up, and how many look-ups are timed.
ENTRIES, DIMENSIONS, LOOK_UPS = 5_000, 384, 50
_BATCH = 64

Pair = dict[str, str]


def pairs(name: str) -> dict[str, list[Pair]]:
    """Return the two halves of a set."""
    rows: list[Pair] = [json.loads(line) for line in SETS[name].read_text("utf-8").splitlines()]
    ids = sorted(row["id"] for row in rows)
    random.Random(SEED).shuffle(ids)
    looked_at = set(ids[:DEVELOPMENT])
    halves = {"development": [row for row in rows if row["id"] in looked_at]}
    return halves | {"test": [row for row in rows if row["id"] not in looked_at]}


def embedded(client: httpx.Client, model: str, texts: Sequence[str]) -> dict[str, list[float]]:
    """Return the vectors of texts."""
    vectors: dict[str, list[float]] = {}
    for at in range(0, len(texts), _BATCH):
        part = list(texts[at : at + _BATCH])
        answer = client.post("/v1/embeddings", json={"model": model, "input": part, "deadline_ms": 300_000})
        found = answer.raise_for_status().json()["data"]
        vectors |= {text: each["embedding"] for text, each in zip(part, found, strict=True)}
    return vectors


def similarity(one: Sequence[float], other: Sequence[float]) -> float:
    """Return the cosine of two vectors as the door computes it, from bytes; 0 if it is negative."""
    table, scope = AnswerVectors(1), bytes(SCOPE_BYTES)
    table.add("", "", 1, scope, packed(one))
    found = table.nearest("", scope, packed(other), 1e-6, 1)
    return found[0].similarity if found else 0.0


def shares(chosen: list[Pair], near: dict[str, float]) -> dict[str, float]:
    """Return how many pairs in a hundred are similar enough, and how many of these the guard lets through as well."""
    agreed = [difference(pair["first"], pair["second"]) is None for pair in chosen]
    figures = {
        "guard": 100 * statistics.mean(agreed),
        "cosine": 100 * statistics.median(near[pair["id"]] for pair in chosen),
    }
    for least in THRESHOLDS:
        similar = [near[pair["id"]] >= least for pair in chosen]
        figures[f"similar {least}"] = 100 * statistics.mean(similar)
        figures[f"hit {least}"] = 100 * statistics.mean(a and b for a, b in zip(similar, agreed, strict=True))
    return figures


def look_up_cost() -> dict[str, float]:
    """Return what one look-up among made vectors costs in ms of CPU time, and the first, which makes the columns."""
    chance, scope = random.Random(SEED), bytes(SCOPE_BYTES)
    made = [packed([chance.gauss(0, 1) for _ in range(DIMENSIONS)]) for _ in range(ENTRIES)]
    table, took = AnswerVectors(ENTRIES), []
    for number, vector in enumerate(made):
        table.add("", str(number), number + 1, scope, vector)
    for number in range(LOOK_UPS + 1):
        began_s = time.process_time()
        table.nearest("", scope, made[number], 0.85, 8)
        took.append(1_000 * (time.process_time() - began_s))
    prompts = [pair["first"] for half in pairs("near_misses").values() for pair in half]
    began_s = time.process_time()
    for one, other in pairwise(prompts):
        difference(one, other)
    guard_ms = 1_000 * (time.process_time() - began_s) / len(prompts)
    return {"p50_ms": statistics.median(took[1:]), "max_ms": max(took[1:]), "first_ms": took[0], "guard_ms": guard_ms}


def measure(model: Path) -> dict[str, dict[str, Any]]:
    """Return a row for each half of each set."""
    port = free_port()
    arguments = ["shared.cli", "up", "--engine", "sim", "--embedding-model", str(model), "--port", str(port)]
    sets = {name: pairs(name) for name in SETS}
    everything = [pair for halves in sets.values() for half in halves.values() for pair in half]
    with (
        tempfile.TemporaryDirectory() as state,
        served_process([*arguments, "--state-dir", state], {}, port),
        httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=600) as client,
    ):
        names = [each["id"] for each in client.get("/v1/models").raise_for_status().json()["data"]]
        name = next(each for each in names if "minilm" in each.lower() or each == model.stem)
        vectors = embedded(client, name, sorted({pair[at] for pair in everything for at in ("first", "second")}))
    near = {pair["id"]: similarity(vectors[pair["first"]], vectors[pair["second"]]) for pair in everything}
    rows: dict[str, dict[str, Any]] = {}
    for name, halves in sets.items():
        for half, chosen in halves.items():
            rows[f"{name}, {half}"] = shares(chosen, near)
        rows[f"{name}, all"] = shares([pair for half in halves.values() for pair in half], near)
    return rows


def main() -> None:
    """Measure, print the figures and write them."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("model", type=Path, help="path of an embedding model (GGUF)")
    options.add_argument("--keep", action="store_true", help="write no results")
    given = options.parse_args()
    facts = environment(SEED) | {"entries": ENTRIES, "dimensions": DIMENSIONS}
    print_environment(facts)
    rows = measure(given.model.resolve())
    print_rows(rows)
    cost = look_up_cost()
    print_rows({f"a look-up among {ENTRIES}": cost})
    if not given.keep:
        write_results("semantic-cache", facts, rows | {"look-up": cost})


if __name__ == "__main__":
    main()
