"""From settings to sizes: what `auto` comes to for slots, cells, context, threads and the step's length."""

import os
from dataclasses import dataclass

from shared.settings.settings import Settings
from shared.settings.table import AUTO
from workers.engine.stats import EngineSettings

#: Longest job where nothing else is set.
_N_CTX_GPU, _N_CTX_CPU = 32768, 8192
#: Cells of a slot on a CPU, where memory is shared with everything else.
_CPU_CELLS = 2048
#: Longest input of an embedding where nothing else is set: a step computes it whole, so its buffers grow with it.
_EMBEDDING_GPU, _EMBEDDING_CPU = 8192, 2048
#: What a GPU keeps free beside weights and cells (compute buffers, other processes): 1.5 GiB.
GPU_SPARE_BYTES = 1536 << 20


@dataclass(frozen=True)
class Sizes:
    """Slots, cells shared by them, and the longest job in tokens."""

    slots: int
    cells: int
    n_ctx: int


def slots_of(settings: Settings, *, gpu: bool) -> int:
    """How many jobs the engine generates at once."""
    if settings.max_batch_size != AUTO:
        return settings.max_batch_size
    return 16 if gpu else 4


def sizes_of(settings: Settings, *, model_ctx: int, gpu: bool, free_cells: int = 0) -> Sizes:
    """Sizes for a model that was trained on `model_ctx` tokens; `free_cells` fit the GPU after the weights."""
    slots = slots_of(settings, gpu=gpu)
    longest = min(model_ctx, _N_CTX_GPU if gpu else _N_CTX_CPU) if settings.n_ctx == AUTO else settings.n_ctx
    if settings.kv_cells != AUTO:
        cells = settings.kv_cells
    elif gpu:
        cells = max(1, min(free_cells, slots * longest))
    else:
        cells = slots * _CPU_CELLS
    return Sizes(slots, cells, min(longest, cells))


def embedding_sizes_of(settings: Settings, *, model_ctx: int, gpu: bool) -> Sizes:
    """Sizes for a model that makes embeddings: `n_ctx` is its longest input, `cells` the tokens of one step."""
    longest = min(model_ctx, _EMBEDDING_GPU if gpu else _EMBEDDING_CPU)
    if settings.n_ctx != AUTO:
        longest = min(model_ctx, settings.n_ctx)
    return Sizes(slots_of(settings, gpu=gpu), max(longest, settings.prefill_chunk), longest)


def threads_of(settings: Settings, *, gpu: bool, workers: int = 1) -> int:
    """Compute threads of one worker: one core is left to everything else, since a spinning thread needs it all."""
    if settings.threads != AUTO:
        return settings.threads
    return 1 if gpu else max(1, (_usable_cores() - 1) // max(1, workers))


def engine_settings(settings: Settings, *, gpu: bool) -> EngineSettings:
    """What the loop keeps to."""
    target_ms = (100 if gpu else 250) if settings.step_target_ms == AUTO else settings.step_target_ms
    return EngineSettings(settings.prefill_chunk, float(target_ms), float(settings.batch_timeout_ms))


def _usable_cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
