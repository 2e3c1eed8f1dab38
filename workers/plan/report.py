"""Presents a plan as a table for people, and as JSON."""

from collections import Counter
from dataclasses import asdict, dataclass
from typing import Any

from shared.settings.settings import Settings
from workers.plan.layers import Layer
from workers.plan.layout import Layout
from workers.plan.memory import Fit, layer_cell_bytes
from workers.plan.work import Work, measures_slots, suitable_settings

_UNITS = ("bytes", "KiB", "MiB", "GiB", "TiB")


@dataclass(frozen=True)
class Plan:
    """The report about one model: its parts, the jobs that fit, and its speed."""

    model: str
    layout: Layout
    settings: Settings
    fit: Fit
    work: Work | None

    def layer_kinds(self) -> list[tuple[Layer, int]]:
        """Return the different layers and how many there are of each, the most frequent first."""
        return Counter(self.layout.layers).most_common()

    def layer_bytes(self, layer: Layer) -> float:
        """Return the bytes of a token in one such layer: 0 if the model embeds, and keeps nothing."""
        if self.layout.embeds:
            return 0.0
        return layer_cell_bytes(self.layout, layer, self.settings.kv_type, flash=self.fit.flash)


def as_json(plan: Plan) -> dict[str, Any]:
    """Return the plan as a JSON object. Sizes are in bytes, times in seconds."""
    layout, fit, work = plan.layout, plan.fit, plan.work
    return {
        "model": plan.model,
        "architecture": layout.architecture,
        "context": layout.context,
        "vocabulary": layout.vocabulary,
        "parameters": {"total": layout.parameters, "active": layout.active_parameters},
        "experts": {"total": layout.experts, "active": layout.experts_used},
        "layers": [
            {
                "kind": layer.kind,
                "count": count,
                "window_tokens": layer.window,
                "bytes_per_token": plan.layer_bytes(layer),
                "bytes_per_sequence": 4 * layer.recurrent,
            }
            for layer, count in plan.layer_kinds()
        ],
        "kv_bytes_per_token": sum(plan.layer_bytes(layer) * count for layer, count in plan.layer_kinds()),
        "kv_type": plan.settings.kv_type,
        "slots": fit.sizes.slots,
        "cells": fit.sizes.cells if fit.cells_bytes else 0,
        "n_ctx": fit.sizes.n_ctx,
        "memory": {
            "gpu_bytes": fit.gpu_bytes,
            "weights_bytes": fit.weights_bytes,
            "host_weights_bytes": fit.host_bytes,
            "kv_bytes": fit.cells_bytes + fit.recurrent_bytes,
            "compute_bytes": fit.compute_bytes,
            "sum_bytes": fit.sum_bytes,
        },
        "work": None if work is None else asdict(work),
        "settings": suitable_settings(fit, plan.settings, work),
    }


def as_rows(plan: Plan) -> list[tuple[str, str]]:
    layout, fit = plan.layout, plan.fit
    parameters = _count(layout.parameters)
    if layout.experts:
        active = f"{_count(layout.active_parameters)} for a token ({layout.experts_used} of {layout.experts} experts)"
        parameters = f"{parameters}; {active}"
    rows = [
        ("model", f"{plan.model} ({layout.architecture}), trained for {layout.context:,} tokens"),
        ("parameters", parameters),
        *(("layers", _layer_text(plan, layer, count)) for layer, count in plan.layer_kinds()),
        ("weights", _size(fit.weights_bytes)),
    ]
    if fit.cells_bytes:
        per_token = sum(plan.layer_bytes(layer) * count for layer, count in plan.layer_kinds())
        rows.append(
            (
                "KV cells",
                f"{_size(fit.cells_bytes)}: {fit.sizes.cells:,} of {_size(per_token)} ({plan.settings.kv_type})",
            )
        )
    if fit.recurrent_bytes:
        rows.append(("recurrent memory", _size(fit.recurrent_bytes)))
    rows += [("compute buffers", f"{_size(fit.compute_bytes)} (estimate)"), ("sum", _sum_text(fit))]
    longest = f"longest job {fit.sizes.n_ctx:,} tokens"
    slots = f"{fit.sizes.slots}"
    if measures_slots(fit, plan.settings):
        slots = f"up to {slots} as the worker measures"
    rows.append(("inputs", longest) if layout.embeds else ("slots", f"{slots}, {longest}"))
    rows += _work_rows(plan.work)
    found = suitable_settings(fit, plan.settings, plan.work)
    return rows + ([] if layout.embeds else [("settings", f"{name}={value}") for name, value in found.items()])


def _layer_text(plan: Plan, layer: Layer, count: int) -> str:
    kept = []
    if plan.layer_bytes(layer):
        kept.append(f"{_size(plan.layer_bytes(layer))} for a token in each")
    if layer.recurrent:
        kept.append(f"{_size(4 * layer.recurrent)} for a sequence in each")
    # llama.cpp can forget what is outside the window, but then a worker could not continue from a prefix.
    window = f" of {layer.window:,} tokens (workers keep all cells)" if layer.window else ""
    return f"{count} with {layer.kind}{window}" + (f": {', '.join(kept)}" if kept else "")


def _sum_text(fit: Fit) -> str:
    if fit.gpu_bytes is None:
        return f"{_size(fit.sum_bytes)} of the host's memory"
    on_gpu = fit.sum_bytes - fit.host_bytes
    where = f"{_size(on_gpu)} of the GPU's {_size(fit.gpu_bytes)}, {_size(fit.host_bytes)} beside it"
    return f"{_size(fit.sum_bytes)}: {where}"


def _work_rows(work: Work | None) -> list[tuple[str, str]]:
    if work is None:
        return []
    demand = work.demand
    job = f"{demand.prompt:,} + {demand.answer:,} tokens"
    rows = [("jobs at once", f"{work.jobs_at_once} of {job}; the memory holds {work.jobs_in_memory}")]
    if work.jobs_per_s is not None:
        rows.append(("jobs per second", f"{work.jobs_per_s:.3g}"))
    if work.last_answer_s is not None:
        rows.append(("last answer", f"after {work.last_answer_s:.3g} s if all {demand.users:,} users ask at once"))
    return rows


def _count(n: int) -> str:
    for size, unit in ((10**12, "T"), (10**9, "B"), (10**6, "M"), (10**3, "k")):
        if n >= size:
            return f"{n / size:.3g} {unit}"
    return str(n)


def _size(size_bytes: float) -> str:
    unit = 0
    while size_bytes >= 1024 and unit < len(_UNITS) - 1:
        size_bytes, unit = size_bytes / 1024, unit + 1
    return f"{size_bytes:.4g} {_UNITS[unit]}"
