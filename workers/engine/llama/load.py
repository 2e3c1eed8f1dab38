"""Load a GGUF onto the devices that were chosen, and make the context that all slots share."""

import ctypes
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shared.errors import ModelError
from workers.engine.llama.devices import Device, describe
from workers.engine.llama.log import LlamaLog
from workers.engine.sizing import GPU_SPARE_BYTES, Sizes

_MAGIC = b"GGUF"
#: Bytes of one value: blocks of 32 carry a scale of two bytes.
_KV_BYTES = {"f32": 4.0, "f16": 2.0, "q8_0": 34 / 32, "q4_0": 18 / 32}
#: llama.cpp rounds a context up to this many cells.
_CELL_STEP = 256
#: What the shortest job takes: a token of prompt and one of answer.
FEWEST_CELLS = 2
#: Largest physical batch: beyond it compute buffers grow and speed does not.
_MAX_UBATCH = 2048
#: Inputs of one step of an embedding model; llama.cpp takes at most 256.
EMBEDDING_SEQUENCES = 64
#: llama.cpp's numbers of the kinds of pooling; 4 ranks pairs of texts.
_POOLINGS = {0: "", 1: "mean", 2: "cls", 3: "last"}


@dataclass(frozen=True)
class Libraries:
    """llama.cpp's API and ggml's library, as backend.py imported them, and the sink of their log."""

    lib: Any
    ggml: Any
    log: LlamaLog


@dataclass(frozen=True)
class ModelShape:
    """What a context is made for."""

    sizes: Sizes
    prefill_chunk: int
    threads: int
    kv_type: str
    gpu: bool

    @property
    def shared(self) -> bool:
        """Whether all slots share one cache, rather than each having its own part (docs/engine.md has the figures).

        A part of its own is computed as if the sequence were alone, to the last bit; it must hold the
        longest job. On a GPU a step over slots that are no neighbours would read the weights several times.
        """
        return self.gpu or self.sizes.cells < self.sizes.slots * self.sizes.n_ctx


def load_model(
    libs: Libraries,
    path: Path,
    devices: list[Device],
    n_gpu_layers: int,
    progress: Callable[[float], None] | None = None,
) -> int:
    """The loaded model. Raises ModelError with what is wrong with the file, or with the memory."""
    _check_file(path)
    lib, log = libs.lib, libs.log
    log.forget()
    params = lib.llama_model_default_params()
    params.n_gpu_layers = n_gpu_layers if devices else 0
    # A list without an entry keeps the model off every GPU; llama.cpp's default would split it over all.
    handles = (ctypes.c_void_p * (len(devices) + 1))(*[device.handle for device in devices], None)
    params.devices = ctypes.cast(handles, ctypes.c_void_p)
    params.split_mode = lib.LLAMA_SPLIT_MODE_LAYER if len(devices) > 1 else lib.LLAMA_SPLIT_MODE_NONE
    params.main_gpu = 0 if devices else -1
    params.use_extra_bufts = not has_amx()

    def tell(share: float, _: object) -> bool:
        if progress is not None:
            progress(share)
        return True

    told = lib.llama_progress_callback(tell)
    params.progress_callback = told
    model: int | None = lib.llama_model_load_from_file(str(path).encode(), params)
    if not model:
        raise ModelError(f"{path.name} could not be loaded: {log.errors() or 'llama.cpp does not say why'}")
    if lib.llama_model_has_encoder(model) or not lib.llama_model_has_decoder(model):
        lib.llama_model_free(model)
        raise ModelError(f"{path.name} is no model that continues text (it has an encoder, or no decoder)")
    return model


def has_amx(cpuinfo: Path = Path("/proc/cpuinfo")) -> bool:
    """Whether the CPU has Intel's matrix tiles.

    There llama.cpp repacks quantized weights for them, and its first step ends the process with a
    segmentation fault (seen with q8_0 on llama-cpp-python 0.3.36; ggml-org/llama.cpp#20824 and #26954),
    so such a CPU gets no repacked weights.
    """
    try:
        return " amx_tile " in cpuinfo.read_text()
    except OSError:
        return False


def new_context(libs: Libraries, model: int, shape: ModelShape) -> int:
    """A context of `shape`. Raises ModelError, naming the sizes, when there is no memory for it, or no sense in it."""
    lib, sizes = libs.lib, shape.sizes
    if sizes.cells < FEWEST_CELLS * sizes.slots:
        raise ModelError(
            f"{sizes.cells} KV cells are fewer than {FEWEST_CELLS} for each of {sizes.slots} slots: more memory, or "
            f"PENSTOCK_KV_CELLS or PENSTOCK_MAX_BATCH_SIZE"
        )
    params = lib.llama_context_default_params()
    params.n_ctx, params.n_seq_max = sizes.cells, sizes.slots
    params.n_batch = min(shape.prefill_chunk, sizes.cells) + sizes.slots
    # One pass over the weights a step: the physical batch holds the whole step where it can.
    params.n_ubatch = min(params.n_batch, _MAX_UBATCH)
    # Only the last position of a sequence is ever sampled; the default reserves a row of logits for every token.
    params.n_outputs_max = sizes.slots
    params.n_threads = params.n_threads_batch = shape.threads
    params.kv_unified = shape.shared
    kinds = {"f32": lib.GGML_TYPE_F32, "f16": lib.GGML_TYPE_F16, "q8_0": lib.GGML_TYPE_Q8_0, "q4_0": lib.GGML_TYPE_Q4_0}
    params.type_k = params.type_v = kinds[shape.kv_type]
    params.flash_attn_type = _flash_attention(lib, shape)
    params.no_perf = True
    ctx: int | None = lib.llama_init_from_model(model, params)
    if not ctx:
        why = libs.log.errors() or "not enough memory"
        raise ModelError(f"no context of {sizes.cells} cells ({shape.kv_type}) for {sizes.slots} slots: {why}")
    if not lib.llama_get_memory(ctx):
        lib.llama_free(ctx)
        raise ModelError(
            "the model keeps no memory of a text, so it cannot continue one; PENSTOCK_POOLING=mean, cls or last makes "
            "embeddings with it"
        )
    return ctx


def pooling_of(lib: Any, model: int, wanted: str) -> str:
    """How the model's embeddings are pooled, "" for a model that continues text. `wanted`: PENSTOCK_POOLING.

    Raises ModelError for a model that ranks.
    """
    if wanted != "auto":
        return "" if wanted == "none" else wanted
    number = int(metadata(lib, model, f"{metadata(lib, model, 'general.architecture')}.pooling_type") or 0)
    if number not in _POOLINGS:
        raise ModelError("the model ranks texts, which is not served; PENSTOCK_POOLING=mean makes embeddings with it")
    return _POOLINGS[number]


def new_embedding_context(libs: Libraries, model: int, shape: ModelShape, pooling: str) -> int:
    """A context that takes whole inputs of up to `shape.sizes.n_ctx` tokens. Raises ModelError."""
    lib, sizes = libs.lib, shape.sizes
    params = lib.llama_context_default_params()
    params.n_ctx, params.n_seq_max = sizes.cells, EMBEDDING_SEQUENCES
    # Pooling looks at one physical batch, so the whole step must be one.
    params.n_batch = params.n_ubatch = sizes.cells
    params.n_threads = params.n_threads_batch = shape.threads
    params.embeddings = params.kv_unified = params.no_perf = True
    params.pooling_type = {name: number for number, name in _POOLINGS.items()}[pooling]
    params.flash_attn_type = _flash_attention(lib, shape)
    ctx: int | None = lib.llama_init_from_model(model, params)
    if not ctx:
        why = libs.log.errors() or "not enough memory"
        raise ModelError(f"no context for inputs of {sizes.n_ctx} tokens: {why}")
    return ctx


def cells_that_fit(libs: Libraries, model: int, devices: list[Device], kv_type: str) -> int:
    """KV cells that fit the devices now, after the weights and less what is kept free."""
    free = sum(max(0, describe(libs.ggml, device.handle).free_bytes - GPU_SPARE_BYTES) for device in devices)
    cells = int(free / cell_bytes(libs.lib, model, kv_type))
    return cells // _CELL_STEP * _CELL_STEP


def cell_bytes(lib: Any, model: int, kv_type: str) -> float:
    """Bytes of one KV cell over all layers."""
    arch = metadata(lib, model, "general.architecture")
    head = lib.llama_model_n_embd(model) // max(1, lib.llama_model_n_head(model))
    key = int(metadata(lib, model, f"{arch}.attention.key_length") or head)
    value = int(metadata(lib, model, f"{arch}.attention.value_length") or head)
    values: int = lib.llama_model_n_layer(model) * lib.llama_model_n_head_kv(model) * (key + value)
    return max(1.0, values * _KV_BYTES[kv_type])


def metadata(lib: Any, model: int, key: str) -> str:
    """A value of the GGUF's metadata as text; "" when there is none."""
    buffer = ctypes.create_string_buffer(512)
    n = lib.llama_model_meta_val_str(model, key.encode(), buffer, len(buffer))
    return buffer.value.decode("utf-8", "replace") if n >= 0 else ""


def description(lib: Any, model: int) -> str:
    """The model in llama.cpp's words: architecture, size class, file type."""
    buffer = ctypes.create_string_buffer(256)
    lib.llama_model_desc(model, buffer, len(buffer))
    return buffer.value.decode("utf-8", "replace")


def _flash_attention(lib: Any, shape: ModelShape) -> int:
    """A quantized cache needs it; a GPU decides for itself; a CPU computes as `llama_cpp.Llama` does: without."""
    if shape.kv_type in ("q8_0", "q4_0"):
        return int(lib.LLAMA_FLASH_ATTN_TYPE_ENABLED)
    return int(lib.LLAMA_FLASH_ATTN_TYPE_AUTO if shape.gpu else lib.LLAMA_FLASH_ATTN_TYPE_DISABLED)


def _check_file(path: Path) -> None:
    try:
        with path.open("rb") as file:
            magic = file.read(len(_MAGIC))
    except OSError as fault:
        raise ModelError(f"the model {path} cannot be read: {fault.strerror or fault}") from None
    if magic != _MAGIC:
        raise ModelError(f"{path} is no GGUF file: it begins with {magic!r}, not {_MAGIC!r}")
