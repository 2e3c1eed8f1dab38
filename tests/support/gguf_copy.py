"""Copies a GGUF model into several files, or with changed vocabulary or metadata."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gguf import GGUFReader, GGUFValueType, GGUFWriter, TokenType


def copy_gguf(
    source: Path,
    target: Path,
    *,
    tensors_a_file: int = 0,
    pieces: Mapping[str, str] | None = None,
    piece_type: TokenType = TokenType.NORMAL,
    template: str | None = None,
    adds_space: bool | None = None,
    **metadata: int,
) -> None:
    """Copy a model; `tensors_a_file` splits it into `<stem>-0000k-of-0000n.gguf`.

    `pieces` maps pieces of the vocabulary to their replacements, which become tokens of this type; `template` is the
    chat template of the copy; `adds_space` says whether its tokenizer puts a space in front of a text; `metadata` are
    whole numbers to add.
    """
    reader = GGUFReader(source)
    architecture = reader.fields["general.architecture"].contents()
    writer = GGUFWriter(target, architecture, split_max_tensors=tensors_a_file)
    for name, field in reader.fields.items():
        if name.startswith("GGUF.") or name == "general.architecture":
            continue
        kind = field.types[0]
        item: Any = field.types[-1] if kind is GGUFValueType.ARRAY else None
        value = field.contents()
        if name == "tokenizer.ggml.tokens":
            value = [(pieces or {}).get(piece, piece) for piece in value]
        elif name == "tokenizer.ggml.token_type":
            names = reader.fields["tokenizer.ggml.tokens"].contents()
            new = [piece in (pieces or {}) for piece in names]
            value = [piece_type if is_new else old for is_new, old in zip(new, value, strict=True)]
        elif name == "tokenizer.chat_template" and template is not None:
            value = template
        elif name == "tokenizer.ggml.add_space_prefix" and adds_space is not None:
            value = adds_space
        writer.add_key_value(name, value, kind, sub_type=item)
    for name, value in metadata.items():
        writer.add_uint32(f"{architecture}.{name}", value)
    for tensor in reader.tensors:
        writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
