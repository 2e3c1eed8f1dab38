"""Loads a GGUF file onto the selected devices, and creates the context that all slots share."""

import ctypes
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shared.errors import ModelError
from workers.engine.llama.devices import Device
from workers.engine.llama.log import LlamaLog
from workers.engine.sizing import MAX_DRAFTS, MAX_UBATCH, Sizes
from workers.gguf_header import MAX_LAYERS, layers_in

_MAGIC = b"GGUF"
#: Number of cells of the shortest possible job, which has one prompt token and one generated token.
MIN_CELLS_PER_SLOT = 2
#: Maximum number of tokens in a physical batch on a CPU with flash attention over a cache in f16. From 64 tokens on,
#: llama.cpp computes attention with other sums, so that a sequence's result would depend on how many tokens are
#: computed beside it (ADR 84).
_MAX_UBATCH_FLASH_CPU = 63
#: The most sequences of a context in llama.cpp (LLAMA_MAX_SEQ).
MAX_SEQUENCES = 256
#: Maximum number of inputs that an embedding model computes in one step.
EMBEDDING_SEQUENCES = 64
#: How many sequences a shared cache can hold besides those in a step, for each slot.
PAUSED_PER_SLOT = 2
#: The pooling of a model that ranks documents. Only the model's file can name it.
RANK = "rank"
#: llama.cpp's number of a pooling type → its name. `rank` makes one number of a query and a document.
_POOLINGS = {0: "", 1: "mean", 2: "cls", 3: "last", 4: RANK}


class ContextRefused(ModelError):
    """llama.cpp did not create a context of this size. Mostly the memory does not suffice."""


@dataclass(frozen=True)
class Libraries:
    """The APIs of llama.cpp and ggml, both imported by backend.py, and the object that collects their log."""

    lib: Any
    ggml: Any
    log: LlamaLog


@dataclass(frozen=True)
class ModelShape:
    """The parameters with which a context is created."""

    sizes: Sizes
    prefill_chunk: int
    threads: int
    kv_type: str
    gpu: bool
    #: Whether the weights have fewer than 12 bits on average.
    quantized: bool = False

    @property
    def shared(self) -> bool:
        """Whether all slots share one KV cache. Otherwise the cache is split, and each slot has its own part of it.

        With a split cache, each sequence gets bit for bit the result that it would get alone, but each part must be
        large enough for the longest job. On a GPU the cache is always shared, because with a split cache a step over
        slots that are not adjacent reads the weights several times. docs/engine.md has the measurements.
        """
        return self.gpu or self.sizes.cells < self.sizes.slots * self.sizes.n_ctx

    @property
    def flash_attention(self) -> bool | None:
        """Whether to use flash attention; None if llama.cpp decides.

        A quantized KV cache requires it. On a GPU, llama.cpp decides about any other cache. On a CPU, a model with
        quantized weights uses it, because its results otherwise depend on where a sequence's cells lie. With a
        cache in f32 llama.cpp would convert all cells to f16 in each step (ADR 84).
        """
        if self.kv_type in ("q8_0", "q4_0"):
            return True
        return None if self.gpu else self.quantized and self.kv_type == "f16"

    @property
    def embeds_with_flash_attention(self) -> bool | None:
        """Whether an embedding model uses flash attention; None if llama.cpp decides.

        On a CPU it does not: llama.cpp would round all keys and values to f16, and the vectors would differ from those
        that an index already has.
        """
        return None if self.gpu else False

    @property
    def batch_rows(self) -> tuple[int, int]:
        """The most tokens of a step, and of the physical batches in which llama.cpp computes it.

        The physical batch is large enough for a whole step if possible, so that a step reads the weights only once.
        """
        rows = min(self.prefill_chunk, self.sizes.cells) + self.sizes.slots
        tiles = not self.gpu and self.kv_type == "f16" and self.flash_attention is True
        return rows, min(rows, _MAX_UBATCH_FLASH_CPU if tiles else MAX_UBATCH)

    def sequences(self, *, recurrent: bool) -> int:
        """Return the number of sequences whose cells the memory can hold. Those that are not in a step may be paused.

        In a split cache, each further sequence would make every part smaller. A recurrent memory keeps a state for each
        sequence, so more of them would take more memory.
        """
        slots = self.sizes.slots
        if not self.shared or recurrent:
            return slots
        return max(slots, min(MAX_SEQUENCES, (1 + PAUSED_PER_SLOT) * slots))


def is_quantized(weights_bytes: int, parameters: int) -> bool:
    """Return whether the weights have fewer than 12 bits on average: f16 has 16, and q8_0 8.5."""
    return 8 * weights_bytes < 12 * parameters


def load_model(
    libs: Libraries,
    path: Path,
    devices: list[Device],
    n_gpu_layers: int,
    progress: Callable[[float], None] | None = None,
) -> int:
    """Load the model and return its handle. Raises ModelError, whose message says why the file could not be loaded."""
    _check_file(path)
    lib, log = libs.lib, libs.log
    log.clear()
    params = lib.llama_model_default_params()
    params.n_gpu_layers = n_gpu_layers if devices else 0
    # With an empty list, no GPU is used. With llama.cpp's default (no list), the model would be split over all GPUs.
    handles = (ctypes.c_void_p * (len(devices) + 1))(*[device.handle for device in devices], None)
    params.devices = ctypes.cast(handles, ctypes.c_void_p)
    params.split_mode = lib.LLAMA_SPLIT_MODE_LAYER if len(devices) > 1 else lib.LLAMA_SPLIT_MODE_NONE
    params.main_gpu = 0 if devices else -1
    params.use_extra_bufts = not has_amx()

    def report(share: float, _: object) -> bool:
        if progress is not None:
            progress(share)
        return True

    # Keep a reference to the callback, because llama.cpp calls it until the model is loaded.
    callback = lib.llama_progress_callback(report)
    params.progress_callback = callback
    model: int | None = lib.llama_model_load_from_file(str(path).encode(), params)
    if not model:
        raise ModelError(f"{path.name} could not be loaded: {log.errors() or 'llama.cpp gives no reason'}")
    if lib.llama_model_has_encoder(model) or not lib.llama_model_has_decoder(model):
        lib.llama_model_free(model)
        raise ModelError(f"{path.name} is not a text generation model (it has an encoder, or no decoder)")
    return model


def has_amx(cpuinfo: Path = Path("/proc/cpuinfo")) -> bool:
    """Return whether the CPU has Intel's matrix tiles (AMX). If it has them, llama.cpp must not repack weights.

    By default, llama.cpp repacks quantized weights for the tiles. The first step then ends the process with a
    segmentation fault (seen with q8_0 on llama-cpp-python 0.3.36; see ggml-org/llama.cpp#20824 and #26954).
    """
    try:
        return " amx_tile " in cpuinfo.read_text()
    except OSError:
        return False


def new_context(libs: Libraries, model: int, shape: ModelShape) -> int:
    """Create a context of `shape`.

    Raises ContextRefused if the memory is too small, and ModelError if there are too few cells for the slots or if the
    model cannot generate text.
    """
    lib, sizes = libs.lib, shape.sizes
    libs.log.forget_context()
    if sizes.cells < MIN_CELLS_PER_SLOT * sizes.slots:
        raise ModelError(
            f"{sizes.cells} KV cells are fewer than {MIN_CELLS_PER_SLOT} for each of {sizes.slots} slots; free more "
            f"memory, or set PENSTOCK_KV_CELLS higher or PENSTOCK_MAX_BATCH_SIZE lower"
        )
    params = lib.llama_context_default_params()
    params.n_ctx, params.n_seq_max = sizes.cells, shape.sequences(recurrent=has_recurrent_memory(lib, model))
    params.n_batch, params.n_ubatch = shape.batch_rows
    # By default, llama.cpp reserves memory for every token's logits. It aborts with fewer outputs than sequences.
    params.n_outputs_max = max(params.n_seq_max, sizes.slots + MAX_DRAFTS)
    params.n_threads = params.n_threads_batch = shape.threads
    params.kv_unified = shape.shared
    kinds = {"f32": lib.GGML_TYPE_F32, "f16": lib.GGML_TYPE_F16, "q8_0": lib.GGML_TYPE_Q8_0, "q4_0": lib.GGML_TYPE_Q4_0}
    params.type_k = params.type_v = kinds[shape.kv_type]
    params.flash_attn_type = _flash_attention(lib, enabled=shape.flash_attention)
    params.no_perf = True
    ctx: int | None = lib.llama_init_from_model(model, params)
    if not ctx:
        why = libs.log.errors() or "not enough memory"
        raise ContextRefused(f"no context of {sizes.cells} cells ({shape.kv_type}) for {sizes.slots} slots: {why}")
    if not lib.llama_get_memory(ctx):
        lib.llama_free(ctx)
        raise ModelError(
            "the model has no KV cache or other memory, so it cannot generate text; with PENSTOCK_POOLING=mean, cls or "
            "last it makes embeddings"
        )
    return ctx


def pooling_of(lib: Any, model: int, wanted: str) -> str:
    """Return how to pool the model's embeddings, or "" if the model is to generate text.

    `wanted` is the value of PENSTOCK_POOLING. With `auto`, the model's file decides. Raises ModelError if it names a
    pooling that is not known.
    """
    if wanted != "auto":
        return "" if wanted == "none" else wanted
    number = int(metadata(lib, model, f"{metadata(lib, model, 'general.architecture')}.pooling_type") or 0)
    if number not in _POOLINGS:
        raise ModelError(f"the model's pooling type {number} is not known; set PENSTOCK_POOLING")
    return _POOLINGS[number]


def new_embedding_context(libs: Libraries, model: int, shape: ModelShape, pooling: str) -> int:
    """Create a context for inputs of up to `shape.sizes.n_ctx` tokens. Raises ModelError if memory is too small."""
    lib, sizes = libs.lib, shape.sizes
    params = lib.llama_context_default_params()
    params.n_ctx, params.n_seq_max = sizes.cells, EMBEDDING_SEQUENCES
    # llama.cpp pools only within one physical batch, so the physical batch must be large enough for a whole step.
    params.n_batch = params.n_ubatch = sizes.cells
    params.n_threads = params.n_threads_batch = shape.threads
    params.embeddings = params.kv_unified = params.no_perf = True
    params.pooling_type = {name: number for number, name in _POOLINGS.items()}[pooling]
    params.flash_attn_type = _flash_attention(lib, enabled=shape.embeds_with_flash_attention)
    ctx: int | None = lib.llama_init_from_model(model, params)
    if not ctx:
        why = libs.log.errors() or "not enough memory"
        raise ModelError(f"no context for inputs of {sizes.n_ctx} tokens: {why}")
    return ctx


def metadata(lib: Any, model: int, key: str) -> str:
    """Return a metadata value of the GGUF file as text, or "" if the file does not have the key."""
    buffer = ctypes.create_string_buffer(512)
    n = lib.llama_model_meta_val_str(model, key.encode(), buffer, len(buffer))
    return buffer.value.decode("utf-8", "replace") if n >= 0 else ""


def has_recurrent_memory(lib: Any, model: int) -> bool:
    """Return whether some layers of the model keep a state for each sequence instead of cells."""
    return bool(lib.llama_model_is_recurrent(model) or lib.llama_model_is_hybrid(model))


def description(lib: Any, model: int) -> str:
    """Return llama.cpp's description of the model: its architecture, size class and file type.

    llama.cpp calls the size of a model that it does not know `?B`. The number of parameters takes its place.
    """
    buffer = ctypes.create_string_buffer(256)
    lib.llama_model_desc(model, buffer, len(buffer))
    size = f"{lib.llama_model_n_params(model) / 1e6:.3g}M"
    return buffer.value.decode("utf-8", "replace").replace("?B", size)


def _flash_attention(lib: Any, *, enabled: bool | None) -> int:
    """Return llama.cpp's constant for whether to use flash attention; None lets llama.cpp decide."""
    names = {True: "ENABLED", False: "DISABLED", None: "AUTO"}
    return int(getattr(lib, f"LLAMA_FLASH_ATTN_TYPE_{names[enabled]}"))


def _check_file(path: Path) -> None:
    try:
        with path.open("rb") as file:
            magic = file.read(len(_MAGIC))
    except OSError as fault:
        raise ModelError(f"the model {path} cannot be read: {fault.strerror or fault}") from None
    if magic != _MAGIC:
        raise ModelError(f"{path} is not a GGUF file: it begins with {magic!r}, not {_MAGIC!r}")
    layers = layers_in(path)
    if layers is not None and not 1 <= layers <= MAX_LAYERS:
        raise ModelError(f"{path.name} has block_count={layers}; llama.cpp supports models of 1 to {MAX_LAYERS} layers")
