"""Writes small random models whose layers do not all keep one key and one value for each token and head."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
from gguf import GGUFReader, GGUFValueType, GGUFWriter

WIDTH, FEED, HEADS, LAYERS = 64, 128, 4, 4
HEAD = WIDTH // HEADS
_Shapes = dict[str, tuple[int, ...]]


def write_odd_model(vocabulary_of: Path, path: Path, architecture: str) -> None:
    """Write a model of one of ARCHITECTURES to `path`, with the vocabulary of another file."""
    source = GGUFReader(vocabulary_of)
    writer = GGUFWriter(path, architecture)
    for name, field in source.fields.items():
        if name.startswith("tokenizer."):
            kind = field.types[0]
            item = field.types[-1] if kind is GGUFValueType.ARRAY else None
            writer.add_key_value(name, field.contents(), kind, sub_type=item)
    writer.add_block_count(LAYERS)
    writer.add_context_length(2048)
    writer.add_embedding_length(WIDTH)
    writer.add_feed_forward_length(FEED)
    writer.add_head_count(HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    n_vocab = len(source.fields["tokenizer.ggml.tokens"].contents())
    shapes: _Shapes = {"token_embd": (n_vocab, WIDTH), "output": (n_vocab, WIDTH)}
    shapes |= ARCHITECTURES[architecture](writer)
    dice = np.random.default_rng(1)
    for name, shape in shapes.items():
        norm = len(shape) == 1
        values = np.ones(shape) if norm else dice.normal(size=shape) / np.sqrt(shape[-1])
        suffix = "" if name.endswith((".ssm_a", ".ssm_d", ".bias")) else ".weight"
        writer.add_tensor(f"{name}{suffix}", values.astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _feed_forward(layer: int) -> _Shapes:
    blk = f"blk.{layer}"
    return {
        f"{blk}.ffn_norm": (WIDTH,),
        f"{blk}.ffn_gate": (FEED, WIDTH),
        f"{blk}.ffn_up": (FEED, WIDTH),
        f"{blk}.ffn_down": (WIDTH, FEED),
    }


def _attention(layer: int, kv_heads: int) -> _Shapes:
    blk = f"blk.{layer}"
    return {
        f"{blk}.attn_norm": (WIDTH,),
        f"{blk}.attn_q": (WIDTH, WIDTH),
        f"{blk}.attn_k": (kv_heads * HEAD, WIDTH),
        f"{blk}.attn_v": (kv_heads * HEAD, WIDTH),
        f"{blk}.attn_output": (WIDTH, WIDTH),
        f"{blk}.attn_q_norm": (HEAD,),
        f"{blk}.attn_k_norm": (HEAD,),
    }


def _hybrid(writer: GGUFWriter) -> _Shapes:
    """LFM2: only the last layer has attention, with two heads; the others have a short convolution."""
    writer.add_head_count_kv([0, 0, 0, 2])
    writer.add_shortconv_l_cache(3)
    writer.add_vocab_size(1024)
    shapes: _Shapes = {"token_embd_norm": (WIDTH,)}
    for layer in range(LAYERS):
        blk = f"blk.{layer}"
        shapes |= _feed_forward(layer)
        if layer == LAYERS - 1:
            shapes |= _attention(layer, 2)
        else:
            shapes |= {
                f"{blk}.attn_norm": (WIDTH,),
                f"{blk}.shortconv.conv": (WIDTH, 3),
                f"{blk}.shortconv.in_proj": (3 * WIDTH, WIDTH),
                f"{blk}.shortconv.out_proj": (WIDTH, WIDTH),
            }
    return shapes


def _sliding_window(writer: GGUFWriter) -> _Shapes:
    """Gemma 3: of its layers, all but every sixth see only a window."""
    writer.add_head_count_kv(2)
    writer.add_key_length(HEAD)
    writer.add_value_length(HEAD)
    writer.add_sliding_window(64)
    shapes: _Shapes = {"output_norm": (WIDTH,)}
    for layer in range(LAYERS):
        blk = f"blk.{layer}"
        shapes |= _attention(layer, 2) | _feed_forward(layer)
        shapes |= {f"{blk}.post_attention_norm": (WIDTH,), f"{blk}.post_ffw_norm": (WIDTH,)}
    return shapes


def _compressed(writer: GGUFWriter) -> _Shapes:
    """DeepSeek 2: the keys and values of all heads are compressed to one vector of 48 numbers."""
    rank, rope = 32, 16
    writer.add_head_count_kv(1)
    writer.add_kv_lora_rank(rank)
    writer.add_q_lora_rank(rank)
    writer.add_key_length(rank + rope)
    writer.add_value_length(rank)
    writer.add_key_length_mla(HEAD + rope)
    writer.add_value_length_mla(HEAD)
    writer.add_rope_dimension_count(rope)
    writer.add_leading_dense_block_count(LAYERS)
    writer.add_expert_count(0)
    writer.add_expert_used_count(0)
    writer.add_expert_feed_forward_length(FEED)
    writer.add_expert_shared_count(0)
    writer.add_expert_weights_scale(1.0)
    shapes: _Shapes = {"output_norm": (WIDTH,)}
    for layer in range(LAYERS):
        blk = f"blk.{layer}"
        shapes |= _feed_forward(layer)
        shapes |= {
            f"{blk}.attn_norm": (WIDTH,),
            f"{blk}.attn_q_a": (rank, WIDTH),
            f"{blk}.attn_q_a_norm": (rank,),
            f"{blk}.attn_q_b": (HEADS * (HEAD + rope), rank),
            f"{blk}.attn_kv_a_mqa": (rank + rope, WIDTH),
            f"{blk}.attn_kv_a_norm": (rank,),
            f"{blk}.attn_k_b": (HEADS, rank, HEAD),
            f"{blk}.attn_v_b": (HEADS, HEAD, rank),
            f"{blk}.attn_output": (WIDTH, HEADS * HEAD),
        }
    return shapes


def _experts(writer: GGUFWriter) -> _Shapes:
    """Qwen 3 MoE: each layer computes two of its eight experts for a token."""
    n_experts, feed = 8, FEED // 2
    writer.add_head_count_kv(2)
    writer.add_key_length(HEAD)
    writer.add_value_length(HEAD)
    writer.add_expert_count(n_experts)
    writer.add_expert_used_count(2)
    writer.add_expert_feed_forward_length(feed)
    shapes: _Shapes = {"output_norm": (WIDTH,)}
    for layer in range(LAYERS):
        blk = f"blk.{layer}"
        shapes |= _attention(layer, 2)
        shapes |= {
            f"{blk}.ffn_norm": (WIDTH,),
            f"{blk}.ffn_gate_inp": (n_experts, WIDTH),
            f"{blk}.ffn_gate_exps": (n_experts, feed, WIDTH),
            f"{blk}.ffn_up_exps": (n_experts, feed, WIDTH),
            f"{blk}.ffn_down_exps": (n_experts, WIDTH, feed),
        }
    return shapes


def _state_space(writer: GGUFWriter) -> _Shapes:
    """Mamba: no layer has attention; each keeps a convolution and a state for each sequence."""
    inner, state, rank = 2 * WIDTH, 16, 8
    writer.add_ssm_conv_kernel(4)
    writer.add_ssm_inner_size(inner)
    writer.add_ssm_state_size(state)
    writer.add_ssm_time_step_rank(rank)
    shapes: _Shapes = {"output_norm": (WIDTH,)}
    for layer in range(LAYERS):
        blk = f"blk.{layer}"
        shapes |= {
            f"{blk}.attn_norm": (WIDTH,),
            f"{blk}.ssm_in": (2 * inner, WIDTH),
            f"{blk}.ssm_conv1d": (inner, 4),
            f"{blk}.ssm_conv1d.bias": (inner,),
            f"{blk}.ssm_x": (rank + 2 * state, inner),
            f"{blk}.ssm_dt": (inner, rank),
            f"{blk}.ssm_dt.bias": (inner,),
            f"{blk}.ssm_a": (inner, state),
            f"{blk}.ssm_d": (inner,),
            f"{blk}.ssm_out": (WIDTH, inner),
        }
    return shapes


#: Name of each architecture → a function that adds its metadata and returns the shapes of its tensors.
ARCHITECTURES: dict[str, Callable[[GGUFWriter], _Shapes]] = {
    "lfm2": _hybrid,
    "gemma3": _sliding_window,
    "deepseek2": _compressed,
    "qwen3moe": _experts,
    "mamba": _state_space,
}
