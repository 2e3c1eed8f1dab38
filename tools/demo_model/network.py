"""The demo model's llama network in PyTorch, as functions over the tensors that are written to the GGUF file."""

from typing import Any

import torch
from torch.nn import functional

from workers.demo.gguf_file import ModelShape

#: A PyTorch tensor. PyTorch is needed only for training, so this project's type checks run without its types.
Tensor = Any
Tensors = dict[str, Tensor]


def hidden_of(tensors: Tensors, shape: ModelShape, ids: Tensor) -> Tensor:
    """Map ids (rows, length) to hidden states (rows, length, n_embd).

    The logits of a position are the product of its hidden state with the token embedding.
    """
    rotations = _rotations(shape, ids.shape[1])
    stream = functional.embedding(ids, tensors["token_embd.weight"])
    for layer in range(shape.n_layer):
        block = {name: tensors[f"blk.{layer}.{name}.weight"] for name in _BLOCK_NAMES}
        stream = stream + _attention(block, shape, _normed(stream, block["attn_norm"], shape), rotations)
        stream = stream + _feed_forward(block, _normed(stream, block["ffn_norm"], shape))
    return _normed(stream, tensors["output_norm.weight"], shape)


_BLOCK_NAMES = ("attn_norm", "attn_q", "attn_k", "attn_v", "attn_output", "ffn_norm", "ffn_gate", "ffn_up", "ffn_down")


def _attention(block: Tensors, shape: ModelShape, values: Tensor, rotations: tuple[Tensor, Tensor]) -> Tensor:
    batch, length, _ = values.shape

    def heads(name: str, count: int) -> Tensor:
        return functional.linear(values, block[name]).view(batch, length, count, shape.head_width).transpose(1, 2)

    query = _rotated(heads("attn_q", shape.n_head), rotations)
    key = _rotated(heads("attn_k", shape.n_head_kv), rotations)
    value = heads("attn_v", shape.n_head_kv)
    shared_by = shape.n_head // shape.n_head_kv
    key, value = key.repeat_interleave(shared_by, dim=1), value.repeat_interleave(shared_by, dim=1)
    attended = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
    return functional.linear(attended.transpose(1, 2).reshape(batch, length, shape.n_embd), block["attn_output"])


def _feed_forward(block: Tensors, values: Tensor) -> Tensor:
    gate = functional.silu(functional.linear(values, block["ffn_gate"]))
    return functional.linear(gate * functional.linear(values, block["ffn_up"]), block["ffn_down"])


def _normed(values: Tensor, weight: Tensor, shape: ModelShape) -> Tensor:
    return functional.rms_norm(values, (shape.n_embd,), weight, shape.norm_eps)


def _rotations(shape: ModelShape, length: int) -> tuple[Tensor, Tensor]:
    """Return the cosines and the sines of the rotary angles, each of shape (length, head_width / 2)."""
    exponents = torch.arange(0, shape.head_width, 2) / shape.head_width
    angles = torch.outer(torch.arange(length).float(), shape.rope_base**-exponents)
    return angles.cos(), angles.sin()


def _rotated(heads: Tensor, rotations: tuple[Tensor, Tensor]) -> Tensor:
    """Rotate each pair of neighbouring elements by the angle of its position."""
    cosines, sines = (values.to(heads.dtype) for values in rotations)
    even, odd = heads[..., 0::2], heads[..., 1::2]
    return torch.stack((even * cosines - odd * sines, even * sines + odd * cosines), dim=-1).flatten(-2)
