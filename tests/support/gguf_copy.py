"""A GGUF written anew: in several files, or with other metadata."""

from pathlib import Path
from typing import Any

from gguf import GGUFReader, GGUFValueType, GGUFWriter


def copy_gguf(source: Path, target: Path, *, tensors_a_file: int = 0, **metadata: int) -> None:
    """Copy a model; `tensors_a_file` splits it into `<stem>-0000k-of-0000n.gguf`, `metadata`: whole numbers to add."""
    reader = GGUFReader(source)
    architecture = reader.fields["general.architecture"].contents()
    writer = GGUFWriter(target, architecture, split_max_tensors=tensors_a_file)
    for name, field in reader.fields.items():
        if name.startswith("GGUF.") or name == "general.architecture":
            continue
        kind = field.types[0]
        item: Any = field.types[-1] if kind is GGUFValueType.ARRAY else None
        writer.add_key_value(name, field.contents(), kind, sub_type=item)
    for name, value in metadata.items():
        writer.add_uint32(f"{architecture}.{name}", value)
    for tensor in reader.tensors:
        writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
