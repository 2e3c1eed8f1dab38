"""Makes the weights with which training begins: random ones, or those of a model file with another vocabulary."""

from math import sqrt
from pathlib import Path

import gguf
import numpy as np
import torch

from tools.demo_model.network import Tensors
from tools.demo_model.tokenizer import Tokenizer
from workers.demo.gguf_file import ModelShape, tensor_shapes
from workers.demo.vocabulary import FIRST_PIECE_ID, SPACE, Vocabulary, vocabulary_of

#: Standard deviation of the initial weights. For the weights that write to the residual stream it is divided by the
#: square root of 2 n_layer.
_FIRST_DEVIATION = 0.02
_RESIDUAL_WRITERS = ("attn_output.weight", "ffn_down.weight")


def random_tensors(shape: ModelShape, seed: int) -> Tensors:
    """Return random weights by tensor name. The token embedding is also used as the output matrix."""
    generator = torch.Generator().manual_seed(seed)
    tensors: Tensors = {}
    for name, dims in tensor_shapes(shape).items():
        if name == "output.weight":
            continue
        if len(dims) == 1:
            values = torch.ones(dims)
        else:
            deviation = _FIRST_DEVIATION / (sqrt(2 * shape.n_layer) if name.endswith(_RESIDUAL_WRITERS) else 1)
            values = torch.randn(dims, generator=generator) * deviation
        tensors[name] = values.requires_grad_()
    return tensors


def tensors_of(path: Path, shape: ModelShape, vocabulary: Vocabulary) -> Tensors:
    """Return the weights of a model file that `write_gguf` has written, with the embeddings of another vocabulary.

    The embedding of a piece is that of the same piece in the file, or else the mean of the pieces that spell it there.
    Raises ValueError if the file's model has another shape.
    """
    reader = gguf.GGUFReader(path)
    values = {tensor.name: np.array(tensor.data, dtype=np.float32) for tensor in reader.tensors}
    old = vocabulary_of(reader.fields["tokenizer.ggml.tokens"].contents()[FIRST_PIECE_ID:])
    tokenizer, embeddings = Tokenizer(old), values["token_embd.weight"]
    rows = [embeddings[:FIRST_PIECE_ID]]
    for piece in vocabulary.pieces[FIRST_PIECE_ID:]:
        ids = tokenizer.encode(piece.replace(SPACE, " "))
        rows.append(embeddings[ids].mean(axis=0, keepdims=True))
    values["token_embd.weight"] = np.concatenate(rows)
    tensors: Tensors = {}
    for name, dims in tensor_shapes(shape).items():
        if name == "output.weight":
            continue
        if name not in values or values[name].shape != dims:
            raise ValueError(f"{path}: the tensor {name} does not have the shape {dims}")
        tensors[name] = torch.from_numpy(values[name]).requires_grad_()
    return tensors
