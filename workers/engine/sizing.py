"""Compute the engine's sizes from the settings: slots, cells, context length, threads and the step target time."""

import math
import os
from dataclasses import dataclass

from shared.settings.setting import AUTO
from shared.settings.worker import WorkerSettings
from workers.engine.stats import EngineSettings

#: Default numbers of slots on a CPU, and on a GPU for embeddings and for models that keep a state for each slot.
_SLOTS_CPU, _SLOTS_WITH_STATE = 4, 16
#: On a GPU the calibration measures how many slots are worthwhile: at least and at most this many (ADR 89).
FEWEST_MEASURED_SLOTS, MOST_MEASURED_SLOTS = 8, 64
#: Default for the most prompt tokens in a step, and the fewest that the calibration chooses on a GPU (ADR 89).
CHUNK = 512
#: Maximum number of tokens in a physical batch. A larger one needs more memory for compute buffers and is not faster.
MAX_UBATCH = 2048
#: Default for the length of the longest job that the engine accepts, in tokens.
_N_CTX_GPU, _N_CTX_CPU = 32768, 8192
#: Default number of KV cells per slot in the host's memory. It is small, because all other programs use this memory.
_CPU_CELLS = 2048
#: On a CPU, each slot has cells of its own for the longest job if those of all slots take at most this: 1 GiB (ADR 12).
SPLIT_BYTES = 1 << 30
#: Default for the length of the longest input that an embedding model accepts, in tokens. Each input is computed in a
#: single step, so the buffers of a step grow with this length.
_EMBEDDING_GPU, _EMBEDDING_CPU = 8192, 2048
#: GPU memory that is left free for compute buffers and for other processes when cells are allocated: 1.5 GiB.
GPU_SPARE_BYTES = 1536 << 20
#: The most drafted tokens in one step. Each needs memory for its logits: four bytes for each token of the vocabulary.
MAX_DRAFTS = 16
_MOST_CHOOSING_THREADS = 8


@dataclass(frozen=True)
class Sizes:
    """Number of slots, number of KV cells of all slots together, and length of the longest accepted job in tokens."""

    slots: int
    cells: int
    n_ctx: int


def slots_of(settings: WorkerSettings, *, gpu: bool, has_state: bool = False) -> int:
    """Return the number of slots, which is how many jobs the engine runs at the same time.

    On a GPU, the calibration may choose fewer, unless the setting decides. `has_state` says whether the model keeps
    memory for each slot beside the cells.
    """
    if settings.max_batch_size != AUTO:
        return settings.max_batch_size
    if not gpu:
        return _SLOTS_CPU
    return _SLOTS_WITH_STATE if has_state else MOST_MEASURED_SLOTS


def sizes_of(
    settings: WorkerSettings,
    *,
    model_ctx: int,
    gpu: bool,
    free_cells: int = 0,
    cell_bytes: float = math.inf,
    integrated: bool = False,
    has_state: bool = False,
) -> Sizes:
    """Return the sizes for a model with a trained context of `model_ctx` tokens.

    `free_cells` is the number of cells that fit into the GPU's memory in addition to the weights. `cell_bytes` is what
    one cell takes in the host's memory. `integrated` says whether the GPU uses the host's memory.
    """
    slots = slots_of(settings, gpu=gpu, has_state=has_state)
    longest = min(model_ctx, _N_CTX_GPU if gpu else _N_CTX_CPU) if settings.n_ctx == AUTO else settings.n_ctx
    if settings.kv_cells != AUTO:
        cells = settings.kv_cells
    elif gpu:
        cells = max(1, min(free_cells, slots * (_CPU_CELLS if integrated else longest)))
    else:
        cells = slots * (longest if slots * longest * cell_bytes <= SPLIT_BYTES else _CPU_CELLS)
    return Sizes(slots, cells, min(longest, cells))


def chunk_of(settings: WorkerSettings, slots: int, *, gpu: bool) -> int:
    """Return the most prompt tokens in a step.

    On a GPU, the calibration may choose fewer, unless the setting decides. A step with answers in all slots then still
    fits into one physical batch.
    """
    if settings.prefill_chunk != AUTO:
        return settings.prefill_chunk
    return max(CHUNK, MAX_UBATCH - slots) if gpu else CHUNK


def embedding_sizes_of(settings: WorkerSettings, *, model_ctx: int, gpu: bool) -> Sizes:
    """Return the sizes for an embedding model. `n_ctx` is the longest input, and `cells` the most tokens in a step."""
    longest = min(model_ctx, _EMBEDDING_GPU if gpu else _EMBEDDING_CPU)
    if settings.n_ctx != AUTO:
        longest = min(model_ctx, settings.n_ctx)
    slots = slots_of(settings, gpu=gpu, has_state=True)
    return Sizes(slots, max(longest, chunk_of(settings, slots, gpu=False)), longest)


def threads_of(settings: WorkerSettings, *, gpu: bool, workers: int = 1) -> int:
    """Return the number of compute threads of one worker. `gpu` says whether the GPU computes the whole model.

    On a CPU, the `workers` of this machine share all cores but one. A compute thread busy-waits and so uses a whole
    core, which is why one core is left for everything else.
    """
    if settings.threads != AUTO:
        return settings.threads
    return 1 if gpu else max(1, (_usable_cores() - 1) // max(1, workers))


def choosing_threads_of(workers: int) -> int:
    """Return the number of threads in which one of the `workers` of this machine chooses the tokens of a step.

    The model computes nothing meanwhile, so no core is left free. More than eight threads are no faster, because they
    share the memory's bandwidth.
    """
    return max(1, min(_MOST_CHOOSING_THREADS, _usable_cores() // max(1, workers)))


def step_target_ms_of(settings: WorkerSettings, *, gpu: bool) -> float:
    """Return the longest time that prompts may add to a step while other jobs decode."""
    return float((100 if gpu else 250) if settings.step_target_ms == AUTO else settings.step_target_ms)


def engine_settings(settings: WorkerSettings, prefill_chunk: int, *, gpu: bool) -> EngineSettings:
    """Return the settings of the engine's loop, whose steps have at most `prefill_chunk` prompt tokens."""
    return EngineSettings(
        prefill_chunk,
        step_target_ms_of(settings, gpu=gpu),
        float(settings.batch_timeout_ms),
        paused_bytes=settings.paused_bytes,
        resume_tokens=settings.resume_tokens,
        speculates=settings.speculation == "auto",
    )


def _usable_cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
