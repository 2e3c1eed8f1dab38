"""Keeps the offers that each cell got and how they ended, and runs a cell alone again to compare."""

import json
import random
import shutil
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from bench.sim.asks import SimJob
from bench.sim.cells.cell import Cell, CellPlan
from bench.sim.cells.deployment import Deployed, stores
from bench.sim.record import recorded, save

_OUTCOME = (
    "number", "admitted_ms", "refusal", "claimed_ms", "first_token_ms", "ended_ms", "outcome", "computed_prompt",
    "computed_answer", "pauses", "predicted_start_ms", "predicted_end_ms",
)  # fmt: skip


def outcomes(jobs: Iterable[SimJob]) -> list[list[Any]]:
    """Return all that happened to each job."""
    return [[getattr(job, name) for name in _OUTCOME] for job in jobs]


def keep(folder: Path, deployed: Deployed) -> None:
    """Write the plan, the offers and the outcomes of each cell to a folder, which is emptied before."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for name, cell in deployed.cells.items():
        save(cell.arrivals, folder / f"{name}.jsonl")
        kept = {"plan": asdict(cell.plan), "seconds": deployed.runs[name].seconds, "outcomes": outcomes(cell.arrivals)}
        (folder / f"{name}.json").write_text(json.dumps(kept))


def replay(folder: Path, seed: int, picks: int = 3) -> dict[str, int]:
    """Run cells picked at random alone with their kept offers. Return for each the jobs that ended otherwise.

    Raises FileNotFoundError if nothing was kept there.
    """
    names = sorted(path.stem for path in folder.glob("*.json"))
    if not names:
        raise FileNotFoundError(f"{folder} has no kept cells: run the scenario first")
    chosen = random.Random(f"{seed} {folder.name}").sample(names, min(picks, len(names)))
    return {name: _replay_one(folder, name) for name in chosen}


def _replay_one(folder: Path, name: str) -> int:
    kept = json.loads((folder / f"{name}.json").read_text())
    jobs = recorded(folder / f"{name}.jsonl") if kept["outcomes"] else []
    losses = tuple((begin_ms, end_ms) for begin_ms, end_ms in kept["plan"]["losses"])
    with stores(1) as (client,):
        cell = Cell(CellPlan(name, kept["plan"]["workers"], losses), client, kept["seconds"])
        cell.offer(jobs)
        cell.advance(1_000 * kept["seconds"])
        cell.finish()
    before: list[list[Any]] = kept["outcomes"]
    return sum(one != other for one, other in zip(outcomes(cell.arrivals), before, strict=True))
