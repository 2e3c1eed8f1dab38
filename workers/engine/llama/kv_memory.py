"""Creates the largest context that the devices' memory allows: measures a KV cell, and retries with fewer cells."""

import math
from dataclasses import replace

from shared.errors import ModelError
from workers.engine.llama.devices import Device, describe
from workers.engine.llama.load import MIN_CELLS_PER_SLOT, ContextRefused, Libraries, ModelShape, new_context
from workers.engine.sizing import GPU_SPARE_BYTES, Sizes

#: llama.cpp rounds the size of a context up to a multiple of this many cells.
CELL_STEP = 256
#: The size of a cell is measured as the difference between two contexts, one with this many cells more. llama.cpp's log
#: has sizes in hundredths of a MiB, so the error is at most 40 bytes a cell.
_MEASURED_CELLS = 512
#: A context that does not fit is tried with this share of its cells, at most this many times: down to a tenth.
SHRINK, _TRIES = 0.75, 8
#: The result of `cells_that_fit` for a model that needs no memory for cells on the devices.
UNBOUNDED = 1 << 40


def cells_that_fit(
    libs: Libraries,
    model: int,
    devices: list[Device],
    shape: ModelShape,
    *,
    most_bytes: float = math.inf,
    paused_bytes: int = 0,
) -> int:
    """Return how many KV cells fit into the memory that is free now, if GPU_SPARE_BYTES stay free on each device.

    Of `most_bytes`, the memory of each device that this worker may take, GPU_SPARE_BYTES stay free as well.
    `paused_bytes` more stay free on a device that uses the host's memory: paused jobs' cells are copied there.

    How large a cell is depends on the model: layers with compressed keys and values, layers with recurrent memory,
    which have no cells, and layers with a sliding window may be mixed, and some layers may be on the CPU. So two small
    contexts are created, and llama.cpp's log tells what they take on each device. Raises ModelError if these do not
    fit.
    """
    smallest, one, other = _measured(libs, model, shape)
    fitting = [UNBOUNDED]
    for device in devices:
        cell_bytes = (other.get(device.name, 0) - one.get(device.name, 0)) / _MEASURED_CELLS
        if cell_bytes > 0:
            # Recurrent memory depends on the number of slots, not of cells.
            fixed_bytes = max(0.0, one[device.name] - smallest * cell_bytes)
            spare_bytes = GPU_SPARE_BYTES + (paused_bytes if device.integrated else 0)
            own_bytes = most_bytes - libs.log.device_bytes("model", "LoRA").get(device.name, 0)
            free_bytes = min(describe(libs.ggml, device.handle).free_bytes, own_bytes) - spare_bytes - fixed_bytes
            fitting.append(int(max(0.0, free_bytes) / cell_bytes))
    return min(fitting) // CELL_STEP * CELL_STEP


def bytes_of_a_cell(libs: Libraries, model: int, shape: ModelShape) -> float:
    """Return what one KV cell takes on all devices together; 0 for a model with recurrent memory only."""
    _, one, other = _measured(libs, model, shape)
    return max(0, sum(other.values()) - sum(one.values())) / _MEASURED_CELLS


def roomiest_context(libs: Libraries, model: int, shape: ModelShape) -> tuple[int, ModelShape]:
    """Create a context, with fewer cells than `shape` has if memory is short. Return it with its shape.

    Compute buffers may be larger than what was kept free for them, and other processes may use the same device. Raises
    ModelError if a tenth of the cells do not fit either, or if the model cannot generate text.
    """
    least = _rounded_up(MIN_CELLS_PER_SLOT * shape.sizes.slots)
    for _ in range(_TRIES - 1):
        try:
            return new_context(libs, model, shape), shape
        except ContextRefused:
            cells = int(shape.sizes.cells * SHRINK) // CELL_STEP * CELL_STEP
            if cells < least:
                raise
            shape = _with_cells(shape, cells)
    return new_context(libs, model, shape), shape


def _measured(libs: Libraries, model: int, shape: ModelShape) -> tuple[int, dict[str, int], dict[str, int]]:
    """Return the cells of the smallest context, and the memory of this context and of one with _MEASURED_CELLS more."""
    smallest = _rounded_up(MIN_CELLS_PER_SLOT * shape.sizes.slots)
    one, other = (_memory_of(libs, model, shape, cells) for cells in (smallest, smallest + _MEASURED_CELLS))
    return smallest, one, other


def _memory_of(libs: Libraries, model: int, shape: ModelShape, cells: int) -> dict[str, int]:
    """Return the memory of a context with `cells` cells on each device, in bytes, by the device's name."""
    try:
        ctx = new_context(libs, model, _with_cells(shape, cells))
    except ContextRefused as fault:
        raise ModelError(f"there is no memory for cells beside the model: {fault}") from fault
    libs.lib.llama_free(ctx)
    return libs.log.device_bytes("KV", "RS")


def _with_cells(shape: ModelShape, cells: int) -> ModelShape:
    sizes = shape.sizes
    return replace(shape, sizes=Sizes(sizes.slots, cells, min(sizes.n_ctx, cells)))


def _rounded_up(cells: int) -> int:
    return -(-cells // CELL_STEP) * CELL_STEP
