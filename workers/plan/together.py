"""Plans several workers that share the GPUs, or the memory, of one machine."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from shared.settings.setting import AUTO
from shared.settings.settings import Settings
from workers.plan.layout import Layout
from workers.plan.memory import DoesNotFit, Fit, fit, gib, least_gpu_bytes, most_gpu_bytes
from workers.plan.shares import Gpu, Need, Share, shares


@dataclass(frozen=True)
class PlannedWorker:
    """One worker: its model as it was named, what fits into its memory, and its part of a GPU; None on the CPU."""

    model: str
    fit: Fit
    share: Share | None


def plan_together(
    models: Sequence[tuple[str, Layout]], settings: Settings, gpus: Sequence[Gpu], memory_bytes: int | None = None
) -> list[PlannedWorker]:
    """Return a plan for each of the workers, whose models are given by name and layout; the same model may be repeated.

    Without GPUs, or if PENSTOCK_DEVICE is `cpu`, they compute on the CPU and take at most `memory_bytes` together.
    Raises DoesNotFit if they do not fit.
    """
    if settings.device == "cpu" or not gpus:
        planned = [PlannedWorker(model, fit(layout, settings, None), None) for model, layout in models]
        _check_memory(planned, memory_bytes)
        return planned
    needs = [
        Need(model, least_gpu_bytes(layout, settings), most_gpu_bytes(layout, settings)) for model, layout in models
    ]
    return [
        PlannedWorker(model, fit(layout, replace(settings, gpu_memory_bytes=AUTO), share.share_bytes), share)
        for (model, layout), share in zip(models, shares(needs, gpus), strict=True)
    ]


def plan_in_turn(
    models: Sequence[tuple[str, Layout]], settings: Settings, workers: int, memory_bytes: int | None = None
) -> list[PlannedWorker]:
    """Return a plan of each model for workers on the CPU that hold one of them each, in turn.

    They take the most if they hold the largest models, or one whose cells are larger than another model; those that
    hold the same file share its weights, but not its cells. Raises DoesNotFit if `memory_bytes` are fewer than that.
    """
    planned = [PlannedWorker(model, fit(layout, settings, None), None) for model, layout in models]
    sizes = [(one.fit.sum_bytes, one) for one in planned]
    repeated = [(one.fit.sum_bytes - one.fit.weights_bytes, one) for one in planned]
    largest = sorted([*sizes, *(repeated * (workers - 1))], key=lambda each: each[0], reverse=True)
    _check_memory([one for _, one in largest[:workers]], memory_bytes)
    return planned


def as_json(planned: PlannedWorker) -> dict[str, Any]:
    """Return the plan of a worker as a JSON object. Sizes are in bytes."""
    found, share = planned.fit, planned.share
    return {
        "model": planned.model,
        "device": "cpu" if share is None else str(share.gpu),
        "gpu_memory_bytes": None if share is None else share.share_bytes,
        "slots": found.sizes.slots,
        "cells": found.sizes.cells if found.cells_bytes else 0,
        "n_ctx": found.sizes.n_ctx,
        "sum_bytes": found.sum_bytes,
    }


def as_rows(planned: Sequence[PlannedWorker]) -> list[tuple[str, ...]]:
    """Return a table with a row for each worker, and its titles as the first row."""
    rows: list[tuple[str, ...]] = [("worker", "model", "device", "memory", "slots", "KV cells", "longest job")]
    for number, one in enumerate(planned, start=1):
        sizes, share = one.fit.sizes, one.share
        device, taken = ("CPU", one.fit.sum_bytes) if share is None else (f"GPU {share.gpu}", share.share_bytes)
        cells = f"{sizes.cells:,}" if one.fit.cells_bytes else "-"
        rows.append((str(number), one.model, device, gib(taken), str(sizes.slots), cells, f"{sizes.n_ctx:,}"))
    return rows


def _check_memory(planned: Sequence[PlannedWorker], memory_bytes: int | None) -> None:
    """Raise DoesNotFit if the workers take more than the memory. Workers with the same file share its weights."""
    weights = {one.model: one.fit.weights_bytes for one in planned}
    sum_bytes = sum(weights.values()) + sum(one.fit.sum_bytes - one.fit.weights_bytes for one in planned)
    if memory_bytes is not None and sum_bytes > memory_bytes:
        each = ", ".join(f"{one.model} {gib(one.fit.sum_bytes)}" for one in planned)
        raise DoesNotFit(f"the models take {gib(sum_bytes)} ({each}), and this machine has {gib(memory_bytes)}")
