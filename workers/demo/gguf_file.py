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
    """The sizes of a model of the llama architecture: vocabulary and context in tokens, widths in elements.

    Creating one raises ValueError if the architecture does not allow these sizes.
    """

    n_vocab: int
    n_ctx_train: int
    n_embd: int
    n_layer: int
    n_head: int
    n_head_kv: int
    n_ff: int
    #: Base of the rotary position embedding and epsilon of the RMS norm; both as in Llama 2.
    rope_base: float = 10000.0
    norm_eps: float = 1e-5

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if value <= 0:
                raise ValueError(f"{name} is {value}; it must be greater than 0")
        if self.n_embd % (2 * self.n_head):
            raise ValueError(f"n_embd {self.n_embd} is not an even multiple of n_head {self.n_head}")
        if self.n_head % self.n_head_kv:
            raise ValueError(f"n_head {self.n_head} is not a multiple of n_head_kv {self.n_head_kv}")

    @property
    def head_width(self) -> int:
        return self.n_embd // self.n_head

    @property
    def kv_width(self) -> int:
        """Number of elements of one token's keys in one layer, which is also the number for its values."""
        return self.head_width * self.n_head_kv


def tensor_shapes(shape: ModelShape) -> dict[str, tuple[int, ...]]:
    """Return the name and the shape (rows first) of every tensor, in the order of the file.

    A matrix W of shape (out, in) maps a vector x to W @ x. The rotary position embedding rotates adjacent pairs of a
    head's elements, (0, 1), (2, 3), and so on, as llama.cpp does for this architecture.
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
    chat_template: str = CHAT_TEMPLATE,
) -> None:
    """Write the model to `path`, replacing an existing file.

    `tensors` are the tensors that `tensor_shapes` names, as float32. If `output.weight` is left out, the token
    embedding is also used as the output matrix. Matrices are stored as `file_type`, vectors as float32. The same
    arguments always produce the same bytes. Raises ValueError if the file type is unknown, or if the file type or the
    vocabulary does not fit `shape`. Raises OSError if the file cannot be written.
    """
    if file_type not in _TENSOR_TYPES:
        raise ValueError(f"file_type {file_type!r} is not one of {', '.join(_TENSOR_TYPES)}")
    for width_name in ("n_embd", "n_ff"):
        width = getattr(shape, width_name)
        if file_type == "q8_0" and width % Q8_0_BLOCK:
            raise ValueError(f"{width_name} {width} is not a multiple of {Q8_0_BLOCK}, which q8_0 needs")
    if len(vocabulary) != shape.n_vocab:
        raise ValueError(f"n_vocab is {shape.n_vocab} but the vocabulary has {len(vocabulary)} pieces")
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_name(name)
    writer.add_file_type(_FILE_TYPES[file_type])
    _describe_shape(writer, shape)
    _describe_vocabulary(writer, vocabulary)
    writer.add_chat_template(chat_template)
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
    # With a space prefix, llama.cpp would insert a space before text that follows a control token, and so before
    # each message of a chat prompt.
    writer.add_add_space_prefix(value=False)
