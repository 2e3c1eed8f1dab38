"""Computes the memory of a worker with a model, and how many slots and KV cells fit into the memory of a GPU.

The numbers of slots, cells and sequences are those that the worker chooses, by the same functions. Weights and cells
are exact up to llama.cpp's rounding. The compute buffers are an estimate: llama.cpp plans them from the graph of the
model. It was compared with what llama.cpp 0.3.36 reserves on a CPU (tests/unit/workers/plan/test_plan_memory.py).
"""

from dataclasses import dataclass, replace

from shared.errors import ModelError
from shared.settings.setting import AUTO
from shared.settings.worker import WorkerSettings
from workers.engine.llama.kv_memory import CELL_STEP, SHRINK, UNBOUNDED
from workers.engine.llama.load import EMBEDDING_SEQUENCES, MAX_SEQUENCES, MIN_CELLS_PER_SLOT, ModelShape, is_quantized
from workers.engine.sizing import GPU_SPARE_BYTES, MAX_DRAFTS, Sizes, chunk_of, embedding_sizes_of, sizes_of, slots_of
from workers.plan.layers import Layer
from workers.plan.layout import Layout

#: Bytes of one number of a KV cell. The quantized types store blocks of 32 numbers in 34 and in 18 bytes.
_NUMBER_BYTES = {"f32": 4.0, "f16": 2.0, "q8_0": 34 / 32, "q4_0": 18 / 32}
#: Bytes of a number in compute buffers and in recurrent memory.
_FLOAT_BYTES = 4
#: The cells with which a worker can run the jobs that people send most.
_USUAL_CELLS = 4_096


class DoesNotFit(ModelError):
    """The model, or the cells that a setting asks for, do not fit into the given memory."""


@dataclass(frozen=True)
class Fit:
    """The sizes of a worker and its memory in bytes, as the worker logs them when it has started."""

    sizes: Sizes
    #: Whether all slots share one KV cache.
    shared: bool
    weights_bytes: int
    #: The weights in the host's memory, beside a GPU.
    host_bytes: int
    cells_bytes: int
    recurrent_bytes: int
    compute_bytes: int
    #: Whether the worker is expected to use flash attention.
    flash: bool
    #: The memory of the GPU; None if the worker computes on the CPU.
    gpu_bytes: int | None

    @property
    def sum_bytes(self) -> int:
        """Everything that the worker takes for the model, on the GPU and in the host's memory."""
        return self.weights_bytes + self.cells_bytes + self.recurrent_bytes + self.compute_bytes


def cell_bytes(layout: Layout, kv_type: str, *, flash: bool) -> float:
    """Return the bytes of one KV cell: the keys and values of one token in all layers."""
    return sum(layer_cell_bytes(layout, layer, kv_type, flash=flash) for layer in layout.layers)


def layer_cell_bytes(layout: Layout, layer: Layer, kv_type: str, *, flash: bool) -> float:
    """Return the bytes of the keys and values of one token in one layer.

    Without flash attention, the values are stored transposed, and those of each layer take as much as the widest.
    """
    widest = max(other.v_width for other in layout.layers)
    v_width = layer.v_width if flash or not layer.v_width else widest
    return (layer.k_width + v_width) * _NUMBER_BYTES[kv_type]


def fit(layout: Layout, settings: WorkerSettings, gpu_bytes: int | None) -> Fit:
    """Return the sizes that a worker with these settings has on a GPU with `gpu_bytes` of free memory, or on the CPU.

    Raises DoesNotFit, whose message says what is needed.
    """
    if layout.context < 1 and settings.n_ctx == AUTO:
        raise DoesNotFit(f"the model's file names no context_length ({layout.context}); give --context")
    if layout.embeds:
        sizes = embedding_sizes_of(settings, model_ctx=layout.context, gpu=gpu_bytes is not None)
        return _checked(layout, settings, sizes, gpu_bytes)
    slots = slots_of(settings, gpu=gpu_bytes is not None, has_state=layout.is_recurrent)
    if slots > MAX_SEQUENCES:
        raise DoesNotFit(
            f"llama.cpp computes {MAX_SEQUENCES} sequences at once, fewer than {slots} slots; give fewer --slots, or "
            f"set PENSTOCK_MAX_BATCH_SIZE lower"
        )
    if gpu_bytes is None:
        flash = _shape(layout, settings, Sizes(slots, 0, layout.context), gpu=False).flash_attention is True
        one_cell = cell_bytes(layout, settings.kv_type, flash=flash)
        sizes = sizes_of(settings, model_ctx=layout.context, gpu=False, cell_bytes=one_cell)
        return _checked(layout, settings, sizes, None)
    spare = gpu_bytes - _fixed_gpu_bytes(layout, slots)
    one_cell = _gpu_cell_bytes(layout, settings)
    free_cells = int(max(0, spare) / one_cell) // CELL_STEP * CELL_STEP if one_cell else UNBOUNDED
    sizes = sizes_of(settings, model_ctx=layout.context, gpu=True, free_cells=free_cells, has_state=layout.is_recurrent)
    if settings.kv_cells != AUTO:
        return _checked(layout, settings, sizes, gpu_bytes)
    # A worker whose compute buffers do not fit beside its cells tries again with fewer cells.
    while sizes.cells >= MIN_CELLS_PER_SLOT * slots:
        try:
            return _checked(layout, settings, sizes, gpu_bytes)
        except DoesNotFit:
            cells = int(sizes.cells * SHRINK) // CELL_STEP * CELL_STEP
            sizes = Sizes(slots, cells, min(sizes.n_ctx, cells))
    raise DoesNotFit(
        f"the weights take {gib(_device_weights_bytes(layout))} of the GPU's {gib(gpu_bytes)}, and "
        f"{gib(GPU_SPARE_BYTES)} are kept free for compute buffers; what is left is too little for {slots} slots"
    )


def least_gpu_bytes(layout: Layout, settings: WorkerSettings) -> int:
    """Return the memory of a GPU that a worker should have: weights, what is kept free, and cells for a usual job."""
    return _gpu_bytes(layout, settings, _USUAL_CELLS)


def most_gpu_bytes(layout: Layout, settings: WorkerSettings) -> int:
    """Return the most memory of a GPU that a worker can use: cells for the longest job in each of its slots."""
    return _gpu_bytes(layout, settings, UNBOUNDED)


def _gpu_bytes(layout: Layout, settings: WorkerSettings, free_cells: int) -> int:
    """Return the memory that a worker takes on a GPU with room for `free_cells` cells."""
    slots = slots_of(settings, gpu=True, has_state=layout.embeds or layout.is_recurrent)
    if layout.embeds:
        return _fixed_gpu_bytes(layout, slots)
    sizes = sizes_of(settings, model_ctx=layout.context, gpu=True, free_cells=free_cells, has_state=layout.is_recurrent)
    return _fixed_gpu_bytes(layout, slots) + round(sizes.cells * _gpu_cell_bytes(layout, settings))


def _fixed_gpu_bytes(layout: Layout, slots: int) -> int:
    return _device_weights_bytes(layout) + GPU_SPARE_BYTES + _recurrent_bytes(layout, slots)


def _gpu_cell_bytes(layout: Layout, settings: WorkerSettings) -> float:
    return cell_bytes(layout, settings.kv_type, flash=True)


def _check_cells(sizes: Sizes) -> None:
    """Raise DoesNotFit for so few cells that no worker starts with them."""
    if sizes.cells < MIN_CELLS_PER_SLOT * sizes.slots:
        raise DoesNotFit(
            f"{sizes.cells} KV cells are fewer than {MIN_CELLS_PER_SLOT} for each of {sizes.slots} slots; give fewer "
            f"--slots, or set PENSTOCK_KV_CELLS higher"
        )


def _checked(layout: Layout, settings: WorkerSettings, sizes: Sizes, gpu_bytes: int | None) -> Fit:
    gpu = gpu_bytes is not None
    if not layout.embeds:
        _check_cells(sizes)
    shape = _shape(layout, settings, sizes, gpu=gpu)
    sequences = EMBEDDING_SEQUENCES if layout.embeds else shape.sequences(recurrent=layout.is_recurrent)
    flash = (shape.embeds_with_flash_attention if layout.embeds else shape.flash_attention) is not False
    # The cells of each part of the cache are rounded up.
    part = sizes.cells if shape.shared or layout.embeds else sizes.cells // sizes.slots
    part = -(-part // CELL_STEP) * CELL_STEP
    cells = part * (1 if shape.shared else sizes.slots)
    result = Fit(
        sizes=sizes,
        shared=shape.shared,
        weights_bytes=layout.weights_bytes + layout.adapters_bytes + (layout.copied_bytes if gpu else 0),
        host_bytes=layout.host_bytes if gpu else layout.weights_bytes + layout.adapters_bytes,
        cells_bytes=round(cells * cell_bytes(layout, settings.kv_type, flash=flash)),
        recurrent_bytes=_recurrent_bytes(layout, sequences),
        compute_bytes=_compute_bytes(layout, shape, part, sequences, flash=flash),
        flash=flash,
        gpu_bytes=gpu_bytes,
    )
    if gpu_bytes is not None and result.sum_bytes - result.host_bytes > gpu_bytes:
        raise DoesNotFit(
            f"{sizes.cells} KV cells with the weights and the compute buffers take "
            f"{gib(result.sum_bytes - result.host_bytes)}, and the GPU has {gib(gpu_bytes)}"
        )
    return result if not layout.embeds else replace(result, cells_bytes=0, recurrent_bytes=0)


def _shape(layout: Layout, settings: WorkerSettings, sizes: Sizes, *, gpu: bool) -> ModelShape:
    quantized = is_quantized(layout.weights_bytes, layout.parameters)
    chunk = chunk_of(settings, sizes.slots, gpu=gpu)
    return ModelShape(sizes, chunk, 1, settings.kv_type, gpu, quantized)


def _device_weights_bytes(layout: Layout) -> int:
    return layout.weights_bytes + layout.adapters_bytes - layout.host_bytes + layout.copied_bytes


def _recurrent_bytes(layout: Layout, sequences: int) -> int:
    return sum(layer.recurrent for layer in layout.layers) * _FLOAT_BYTES * sequences


def _compute_bytes(layout: Layout, shape: ModelShape, part_cells: int, sequences: int, *, flash: bool) -> int:
    """Estimate the compute buffers and the buffer of outputs.

    The largest step of a layer decides: the scores of all heads for the cells of a part of the cache, the feed-forward
    network, or the state space. Beside it are the mask and five or six vectors of the model's width for each token.
    With flash attention there are no scores, and the mask has 16-bit floats. Measured, it takes up to a fifth more.
    """
    _, rows = shape.batch_rows
    rows = shape.sizes.cells if layout.embeds else rows
    has_cells = any(layer.k_width for layer in layout.layers)
    mask = part_cells if has_cells else 0
    attention = 0.6 * mask + 5 * layout.width if flash else mask * (1 + layout.heads) + 6 * layout.width
    feed = (0.5 if flash else 1) * mask + 3 * layout.feed_width + 5 * layout.width
    state = 6 * layout.state_width + layout.width
    drafts = 0 if layout.embeds else MAX_DRAFTS
    outputs = max(sequences, shape.sizes.slots + drafts) * layout.vocabulary
    return round(_FLOAT_BYTES * (max(rows * max(attention, feed, state), outputs) + outputs))


def gib(size_bytes: float) -> str:
    """Return a size in GiB, for messages."""
    return f"{size_bytes / 2**30:.2f} GiB"
