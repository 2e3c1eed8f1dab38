"""Opens a model: chooses its devices, loads it, sizes its context by the free memory, and states the facts."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from shared.jobs.adapter_list import Adapter
from shared.jobs.model_name import split_parts
from shared.settings.setting import AUTO
from shared.settings.worker import WorkerSettings
from workers.engine.backend import Facts
from workers.engine.llama.aborts import log_aborts
from workers.engine.llama.adapter_file import check_adapters
from workers.engine.llama.adapters import Adapters, load_adapters
from workers.engine.llama.devices import Device, choose, gpus, unused_gpu_advice
from workers.engine.llama.fingerprint import fingerprint_of
from workers.engine.llama.kv_memory import bytes_of_a_cell, cells_that_fit, roomiest_context
from workers.engine.llama.load import (
    Libraries,
    ModelShape,
    description,
    has_recurrent_memory,
    is_quantized,
    load_model,
    new_context,
    new_embedding_context,
    pooling_of,
)
from workers.engine.llama.log import is_host
from workers.engine.sizing import Sizes, chunk_of, embedding_sizes_of, sizes_of, slots_of, threads_of


@dataclass(frozen=True)
class OpenModel:
    """A loaded model and its context, which the caller must free. `pooling` is "" if the model generates text."""

    model: int
    ctx: int
    shape: ModelShape
    pooling: str
    facts: Facts
    adapters: Adapters


def open_model(
    libs: Libraries,
    settings: WorkerSettings,
    path: Path,
    *,
    index: int,
    workers: int,
    progress: Callable[[float], None] | None,
    adapters: Sequence[Adapter] = (),
) -> OpenModel:
    """Load the model at `path` onto the devices that the settings select, and create a context for all slots.

    `index` is this worker's index among the `workers` of this machine. `progress` is called with the fraction of the
    model that is loaded so far, 0 to 1. Raises ModelError if the model or one of its `adapters` cannot be used.
    """
    check_adapters(adapters, split_parts(path))
    seen = gpus(libs.ggml)
    devices = choose(settings.device, seen, index=index)
    log_aborts(libs.ggml, libs.log, _names_of(devices))
    model = load_model(libs, path, devices, settings.n_gpu_layers, progress)
    try:
        threads = threads_of(settings, gpu=bool(devices) and not _computes_on_cpu(libs, model), workers=workers)
        pooling = pooling_of(libs.lib, model, settings.pooling)
        loaded = load_adapters(libs, model, adapters, embeds=bool(pooling))
        wanted = _wanted_shape(libs, settings, model, devices, threads, embeds=bool(pooling))
        if pooling:
            ctx, shape = new_embedding_context(libs, model, wanted, pooling), wanted
        elif settings.kv_cells == AUTO:
            ctx, shape = roomiest_context(libs, model, wanted)
        else:
            ctx, shape = new_context(libs, model, wanted), wanted
    except Exception:
        libs.lib.llama_model_free(model)
        raise
    advice = unused_gpu_advice(seen) if settings.device == "auto" else ""
    if shape != wanted:
        advice = f"memory is short: {shape.sizes.cells} KV cells were created instead of {wanted.sizes.cells}"
    facts = _facts(libs, model, ctx, shape, devices, pooling=pooling, advice=advice)
    facts = replace(facts, fingerprint=fingerprint_of(path))
    libs.log.logs_errors = True
    return OpenModel(model, ctx, shape, pooling, facts, loaded)


def _wanted_shape(
    libs: Libraries, settings: WorkerSettings, model: int, devices: list[Device], threads: int, *, embeds: bool
) -> ModelShape:
    gpu = bool(devices)
    model_ctx = libs.lib.llama_model_n_ctx_train(model)
    quantized = is_quantized(libs.lib.llama_model_size(model), libs.lib.llama_model_n_params(model))

    def shaped(sizes: Sizes) -> ModelShape:
        # The cells of a model that embeds are those of one step, which does not grow on a GPU.
        chunk = chunk_of(settings, sizes.slots, gpu=gpu and not embeds)
        return ModelShape(sizes, chunk, threads, settings.kv_type, gpu, quantized)

    if embeds:
        return shaped(embedding_sizes_of(settings, model_ctx=model_ctx, gpu=gpu))
    free_cells, cell_bytes = 0, math.inf
    has_state = has_recurrent_memory(libs.lib, model)
    if settings.kv_cells == AUTO:
        shape = shaped(Sizes(slots_of(settings, gpu=gpu, has_state=has_state), 0, model_ctx))
        if gpu:
            most_bytes = math.inf if settings.gpu_memory_bytes == AUTO else settings.gpu_memory_bytes
            free_cells = cells_that_fit(
                libs, model, devices, shape, most_bytes=most_bytes, paused_bytes=settings.paused_bytes
            )
        else:
            cell_bytes = bytes_of_a_cell(libs, model, shape)
    integrated = gpu and all(device.integrated for device in devices)
    sizes = sizes_of(
        settings,
        model_ctx=model_ctx,
        gpu=gpu,
        free_cells=free_cells,
        cell_bytes=cell_bytes,
        integrated=integrated,
        has_state=has_state,
    )
    return shaped(sizes)


def _computes_on_cpu(libs: Libraries, model: int) -> bool:
    """Return whether the CPU computes a part of a model that is on a GPU: some layers, or some of their weights.

    The embeddings of the input tokens are always in the host's memory. They are only looked up there, and take at most
    four bytes for each number.
    """
    lib, log = libs.lib, libs.log
    if log.layers_offloaded < log.layers:
        return True
    looked_up: int = 4 * lib.llama_vocab_n_tokens(lib.llama_model_get_vocab(model)) * lib.llama_model_n_embd(model)
    return sum(size for device, size in log.device_bytes("model").items() if is_host(device)) > looked_up


def _names_of(devices: list[Device]) -> str:
    return ", ".join(f"{device.name} ({device.description})" for device in devices) or "CPU"


def _facts(
    libs: Libraries,
    model: int,
    ctx: int,
    shape: ModelShape,
    devices: list[Device],
    *,
    pooling: str,
    advice: str,
) -> Facts:
    lib, log, sizes = libs.lib, libs.log, shape.sizes
    return Facts(
        engine="llama",
        device=_names_of(devices),
        model=description(lib, model),
        n_ctx=sizes.n_ctx,
        cells=sizes.cells,
        slots=sizes.slots,
        cache="shared" if shape.shared else "split",
        threads=shape.threads,
        prefill_chunk=shape.prefill_chunk if pooling else lib.llama_n_batch(ctx) - sizes.slots,
        pooling=pooling,
        layers=log.layers or lib.llama_model_n_layer(model) + 1,
        layers_offloaded=log.layers_offloaded if devices else 0,
        weights_bytes=log.buffer_bytes("model", "LoRA") or lib.llama_model_size(model),
        kv_bytes=log.buffer_bytes("KV", "RS"),
        compute_bytes=log.buffer_bytes("compute", "output"),
        warning=advice,
    )
