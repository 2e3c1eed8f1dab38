"""Finds the memory of each layer of a model for a token and for a sequence, from the header of the model's file.

The tensors of a layer tell its kind, so that the formulas hold for architectures that are not listed here. The formulas
are those of llama.cpp: `llama_kv_cache` and `llama_memory_recurrent`, with the sizes of `llama_hparams`.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass

from workers.gguf_header import MAX_LAYERS, Header, HeaderFault, Tensor, Value

#: The name of a tensor of a layer: the layer's number, and the role of the tensor in it.
_OF_LAYER = re.compile(r"blk\.([0-9]{1,4})\.(.+)", re.DOTALL)
#: Parts of the names of tensors that only layers with recurrent memory have: state spaces, convolutions, RWKV.
_RECURRENT = ("ssm_", "shortconv.", "time_mix_")
#: Every which layer sees the whole context, in architectures whose files do not say it (`set_swa_pattern`).
_WINDOW_PERIODS = {
    "cohere2": 4,
    "exaone4": 4,
    "gemma2": 2,
    "gemma3": 6,
    "gemma3n": 5,
    "gpt-oss": 2,
    "llama4": 4,
    "olmo2": 4,
}
#: The layers from this one on use the keys and values of earlier layers.
_LAYERS_WITH_OWN_CELLS = {"gemma3n": 20}


@dataclass(frozen=True)
class Layer:
    """The memory of one layer: numbers for each token, in a KV cell, and numbers for each sequence of any length."""

    k_width: int = 0
    v_width: int = 0
    #: The numbers of the recurrent memory of a sequence, which are always 32-bit floats.
    recurrent: int = 0
    #: The last tokens that the layer sees; 0 if it sees all.
    window: int = 0

    @property
    def kind(self) -> str:
        if self.recurrent:
            return "attention and recurrent" if self.k_width else "recurrent"
        if not self.k_width:
            return "no memory"
        if not self.v_width:
            return "compressed attention"
        return "sliding window" if self.window else "full attention"


class Metadata:
    """The metadata of a model's architecture, as numbers. A value for all layers may be one number or an array."""

    def __init__(self, header: Header) -> None:
        self._values, self._file = header.values, header.name
        architecture = header.values.get("general.architecture")
        if not isinstance(architecture, str) or not architecture:
            raise HeaderFault(f"{header.name} does not name its architecture (general.architecture)")
        self.architecture = architecture

    def raw(self, key: str) -> Value | None:
        return self._values.get(f"{self.architecture}.{key}")

    def number(self, key: str, default: int = 0, *, layer: int = 0) -> int:
        """Return a whole number, that of `layer` if the value is an array. Raises HeaderFault."""
        value = self.raw(key)
        if isinstance(value, tuple) and layer < len(value):
            value = value[layer]
        if value is None:
            return default
        if not isinstance(value, int) or not 0 <= value < 1 << 40:
            raise HeaderFault(f"{self._file} has {self.architecture}.{key}={value!r}, which is not a valid number")
        return value


def layers_of(metadata: Metadata, tensors: Iterable[Tensor]) -> list[Layer]:
    """Return the memory of each layer. Raises HeaderFault if a number that is needed is not valid."""
    n_layers = metadata.number("block_count")
    if not 1 <= n_layers <= MAX_LAYERS:
        raise HeaderFault(f"{metadata.architecture}.block_count={n_layers} is not in 1..{MAX_LAYERS}")
    shapes: list[dict[str, tuple[int, ...]]] = [{} for _ in range(n_layers)]
    for tensor in tensors:
        found = _OF_LAYER.match(tensor.name)
        if found is not None and int(found[1]) < n_layers:
            shapes[int(found[1])][found[2]] = tensor.shape
    own = n_layers - metadata.number("nextn_predict_layers")
    own = min(own, n_layers - metadata.number("attention.shared_kv_layers"))
    own = min(own, _LAYERS_WITH_OWN_CELLS.get(metadata.architecture, n_layers))
    return [_layer(metadata, layer, shapes[layer], has_cells=layer < own) for layer in range(n_layers)]


def heads_of(metadata: Metadata, n_layers: int) -> int:
    """Return the number of query heads of the layer that has most."""
    return max(metadata.number("attention.head_count", layer=layer) for layer in range(n_layers))


def _layer(metadata: Metadata, layer: int, shapes: dict[str, tuple[int, ...]], *, has_cells: bool) -> Layer:
    recurrent = any(name.startswith(_RECURRENT) for name in shapes)
    heads = metadata.number("attention.head_count", layer=layer)
    kv_heads = metadata.number("attention.head_count_kv", heads, layer=layer)
    attention = {"attn_k.weight", "attn_kv_a_mqa.weight"} & set(shapes) or (
        "attn_qkv.weight" in shapes and not recurrent
    )
    k_width, v_width = 0, 0
    if attention and kv_heads and has_cells:
        k_width, v_width = _cell_widths(metadata, layer, shapes, kv_heads)
    windowed = k_width and _has_window(metadata, layer)
    window = metadata.number("attention.sliding_window", metadata.number("attention.chunk_size")) if windowed else 0
    return Layer(k_width, v_width, _recurrent_numbers(metadata) if recurrent else 0, window)


def _cell_widths(metadata: Metadata, layer: int, shapes: dict[str, tuple[int, ...]], kv_heads: int) -> tuple[int, int]:
    """Return how many numbers the keys and the values of one token have."""
    compressed = shapes.get("attn_kv_a_mqa.weight")
    if compressed is not None and metadata.number("attention.key_length_mla"):
        return compressed[-1], 0
    heads = metadata.number("attention.head_count", layer=layer)
    head_width = metadata.number("embedding_length") // max(1, heads)
    k_width = kv_heads * metadata.number("attention.key_length", head_width)
    v_width = kv_heads * metadata.number("attention.value_length", head_width)
    # Heads of layers with a window may have another width, and a layer without values uses its keys as values.
    if "attn_k.weight" in shapes:
        k_width = shapes["attn_k.weight"][-1]
        v_width = shapes.get("attn_v.weight", (k_width,))[-1]
    return k_width, v_width


def _has_window(metadata: Metadata, layer: int) -> bool:
    pattern = metadata.raw("attention.sliding_window_pattern")
    if isinstance(pattern, tuple):
        return layer < len(pattern) and bool(pattern[layer])
    period = _WINDOW_PERIODS.get(metadata.architecture, 0)
    if isinstance(pattern, int):
        period = pattern
    return period > 0 and layer % period < period - 1


def _recurrent_numbers(metadata: Metadata) -> int:
    """Return how many numbers a layer keeps for a sequence (`n_embd_r` and `n_embd_s` of llama.cpp)."""
    width = metadata.number("embedding_length")
    wkv_head = metadata.number("wkv.head_size")
    if wkv_head:
        return width * metadata.number("token_shift_count", 2) + width * wkv_head
    convolution = metadata.number("shortconv.l_cache")
    if convolution:
        return width * (convolution - 1)
    taps = max(0, metadata.number("ssm.conv_kernel") - 1)
    kda_head = metadata.number("kda.head_dim")
    if kda_head:
        heads = metadata.number("attention.head_count")
        return 3 * taps * heads * kda_head + heads * kda_head**2
    inner, state = metadata.number("ssm.inner_size"), metadata.number("ssm.state_size")
    return taps * (inner + 2 * metadata.number("ssm.group_count") * state) + state * inner
