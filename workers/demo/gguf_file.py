"""Writes a GGUF file of the llama architecture from a shape, a vocabulary and tensors."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import gguf
import numpy as np
from gguf import quants

from workers.demo.vocabulary import BOS_ID, CHAT_TEMPLATE, EOS_ID, UNKNOWN_ID, Vocabulary

FileType = Literal["f32", "f16", "q8_0"]

#: q8_0 stores rows in blocks of this many elements.
Q8_0_BLOCK = 32

_TENSOR_TYPES = {
    "f32": gguf.GGMLQuantizationType.F32,
    "f16": gguf.GGMLQuantizationType.F16,
    "q8_0": gguf.GGMLQuantizationType.Q8_0,
}
_FILE_TYPES = {
    "f32": gguf.LlamaFileType.ALL_F32,
    "f16": gguf.LlamaFileType.MOSTLY_F16,
    "q8_0": gguf.LlamaFileType.MOSTLY_Q8_0,
}


@dataclass(frozen=True)
class ModelShape:
    """The size of a llama: vocabulary, context and widths in tokens and elements.

    Raises ValueError at birth when the numbers cannot be a llama's.
    """

    n_vocab: int
    n_ctx_train: int
    n_embd: int
    n_layer: int
    n_head: int
    n_head_kv: int
    n_ff: int
    #: Base of the rotary positions and the epsilon of the RMS norm: Llama 2's.
    rope_base: float = 10000.0
    norm_eps: float = 1e-5

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if value <= 0:
                raise ValueError(f"{name} is {value}; it must be more than 0")
        if self.n_embd % (2 * self.n_head):
            raise ValueError(f"n_embd {self.n_embd} is no even multiple of n_head {self.n_head}")
        if self.n_head % self.n_head_kv:
            raise ValueError(f"n_head {self.n_head} is no multiple of n_head_kv {self.n_head_kv}")

    @property
    def head_width(self) -> int:
        """Elements of one attention head."""
        return self.n_embd // self.n_head

    @property
    def kv_width(self) -> int:
        """Elements of one token's keys, and of its values, in one layer."""
        return self.head_width * self.n_head_kv


def tensor_shapes(shape: ModelShape) -> dict[str, tuple[int, ...]]:
    """Return every tensor's name and shape, rows first, in the order of the file.

    A matrix of shape (out, in) maps a vector x to W @ x. The rotary positions turn neighbouring
    elements (0, 1), (2, 3), … of a head, as llama.cpp does for this architecture.
    """
    embd, layer_width = shape.n_embd, shape.n_ff
    shapes: dict[str, tuple[int, ...]] = {"token_embd.weight": (shape.n_vocab, embd)}
    for layer in range(shape.n_layer):
        of_layer: dict[str, tuple[int, ...]] = {
            "attn_norm": (embd,),
            "attn_q": (embd, embd),
            "attn_k": (shape.kv_width, embd),
            "attn_v": (shape.kv_width, embd),
            "attn_output": (embd, embd),
            "ffn_norm": (embd,),
            "ffn_gate": (layer_width, embd),
            "ffn_up": (layer_width, embd),
            "ffn_down": (embd, layer_width),
        }
        shapes |= {f"blk.{layer}.{name}.weight": dims for name, dims in of_layer.items()}
    return shapes | {"output_norm.weight": (embd,), "output.weight": (shape.n_vocab, embd)}


def write_gguf(
    path: Path,
    shape: ModelShape,
    vocabulary: Vocabulary,
    tensors: Iterable[tuple[str, np.ndarray[Any, np.dtype[np.float32]]]],
    *,
    name: str,
    file_type: FileType,
) -> None:
    """Write the model to `path`, replacing what is there.

    `tensors` are those of `tensor_shapes`, float32; without `output.weight` the token embedding
    serves for both. Matrices are stored as `file_type`, vectors as float32. The same arguments
    make the same bytes. Raises ValueError for a file type or a vocabulary that does not fit, and
    OSError when the file cannot be written.
    """
    if file_type not in _TENSOR_TYPES:
        raise ValueError(f"file_type {file_type!r} is none of {', '.join(_TENSOR_TYPES)}")
    for width_name in ("n_embd", "n_ff"):
        width = getattr(shape, width_name)
        if file_type == "q8_0" and width % Q8_0_BLOCK:
            raise ValueError(f"{width_name} {width} is no multiple of {Q8_0_BLOCK}, which q8_0 needs")
    if len(vocabulary) != shape.n_vocab:
        raise ValueError(f"n_vocab is {shape.n_vocab} but the vocabulary has {len(vocabulary)} pieces")
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_name(name)
    writer.add_file_type(_FILE_TYPES[file_type])
    _describe_shape(writer, shape)
    _describe_vocabulary(writer, vocabulary)
    for tensor_name, values in tensors:
        kind = _TENSOR_TYPES["f32" if values.ndim == 1 else file_type]
        writer.add_tensor(tensor_name, quants.quantize(values, kind), raw_dtype=kind)
    try:
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
    finally:
        writer.close()


def _describe_shape(writer: Any, shape: ModelShape) -> None:
    writer.add_vocab_size(shape.n_vocab)
    writer.add_context_length(shape.n_ctx_train)
    writer.add_embedding_length(shape.n_embd)
    writer.add_block_count(shape.n_layer)
    writer.add_feed_forward_length(shape.n_ff)
    writer.add_head_count(shape.n_head)
    writer.add_head_count_kv(shape.n_head_kv)
    writer.add_layer_norm_rms_eps(shape.norm_eps)
    writer.add_rope_dimension_count(shape.head_width)
    writer.add_rope_freq_base(shape.rope_base)


def _describe_vocabulary(writer: Any, vocabulary: Vocabulary) -> None:
    writer.add_tokenizer_model("llama")
    writer.add_tokenizer_pre("default")
    writer.add_token_list(list(vocabulary.pieces))
    writer.add_token_scores(list(vocabulary.scores))
    writer.add_token_types(list(vocabulary.types))
    writer.add_bos_token_id(BOS_ID)
    writer.add_eos_token_id(EOS_ID)
    writer.add_unk_token_id(UNKNOWN_ID)
    writer.add_add_bos_token(value=True)
    writer.add_add_eos_token(value=False)
    # Off, so that an answer that follows a control token begins with a letter, not with a space.
    writer.add_add_space_prefix(value=False)
    writer.add_chat_template(CHAT_TEMPLATE)
