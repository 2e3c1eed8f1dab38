"""Writes a BERT model with seeded random weights: an encoder without a KV cache, which embeds or ranks texts."""

from pathlib import Path

import numpy as np
from gguf import GGUFWriter, PoolingType, TokenType

_SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
#: Words begin with the mark that this tokenizer uses in GGUF files; the other pieces continue a word.
_WORDS = tuple(f"\u2581{a}{b}" for a in "bdfgklmnprst" for b in "aeiou")
_PIECES = tuple(word[1:] for word in _WORDS)


def write_bert(
    path: Path, *, pooling: PoolingType = PoolingType.CLS, width: int = 32, layers: int = 2, context: int = 64
) -> None:
    """Write the model to `path`; its longest text has `context` tokens."""
    tokens = [*_SPECIAL, *_WORDS, *_PIECES]
    writer = GGUFWriter(path, "bert")
    writer.add_block_count(layers)
    writer.add_context_length(context)
    writer.add_embedding_length(width)
    writer.add_feed_forward_length(2 * width)
    writer.add_head_count(4)
    writer.add_layer_norm_eps(1e-12)
    writer.add_causal_attention(value=False)
    writer.add_pooling_type(pooling)
    writer.add_tokenizer_model("bert")
    writer.add_token_list(tokens)
    writer.add_token_types([TokenType.CONTROL] * len(_SPECIAL) + [TokenType.NORMAL] * (len(tokens) - len(_SPECIAL)))
    writer.add_token_type_count(2)
    for add, token in (
        (writer.add_pad_token_id, "[PAD]"),
        (writer.add_unk_token_id, "[UNK]"),
        (writer.add_bos_token_id, "[CLS]"),
        (writer.add_sep_token_id, "[SEP]"),
        (writer.add_mask_token_id, "[MASK]"),
    ):
        add(tokens.index(token))
    dice = np.random.default_rng(1)
    shapes: dict[str, tuple[int, ...]] = {
        "token_embd": (len(tokens), width),
        "token_types": (2, width),
        "position_embd": (context, width),
    }
    norms = ["token_embd_norm"]
    for layer in range(layers):
        for name, (outward, inward) in {
            "attn_q": (width, width),
            "attn_k": (width, width),
            "attn_v": (width, width),
            "attn_output": (width, width),
            "ffn_up": (2 * width, width),
            "ffn_down": (width, 2 * width),
        }.items():
            shapes[f"blk.{layer}.{name}"] = (outward, inward)
            writer.add_tensor(f"blk.{layer}.{name}.bias", dice.normal(size=outward).astype(np.float32) / 10)
        norms += [f"blk.{layer}.attn_output_norm", f"blk.{layer}.layer_output_norm"]
    if pooling == PoolingType.RANK:
        shapes |= {"cls": (width, width), "cls.output": (1, width)}
        writer.add_tensor("cls.bias", np.zeros(width, np.float32))
        writer.add_tensor("cls.output.bias", np.zeros(1, np.float32))
    for name, shape in shapes.items():
        writer.add_tensor(f"{name}.weight", (dice.normal(size=shape) / np.sqrt(shape[-1])).astype(np.float32))
    for name in norms:
        writer.add_tensor(f"{name}.weight", np.ones(width, np.float32))
        writer.add_tensor(f"{name}.bias", np.zeros(width, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
