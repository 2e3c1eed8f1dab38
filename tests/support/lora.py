"""Writes LoRA adapters with seeded random factors for a model's file, as llama.cpp's converter would."""

from pathlib import Path

import gguf
import numpy as np

from workers.gguf_header import read_local_header

#: The matrices to which an adapter is added, as parts of the names of their tensors.
MATRICES = ("attn_q", "attn_v", "ffn_down")


def write_lora(
    path: Path,
    base: Path,
    *,
    seed: int,
    rank: int = 4,
    strength: float = 0.5,
    architecture: str = "",
    alpha: float = 8.0,
) -> Path:
    """Write an adapter of the model at `base` to `path`. Its factors are so large that answers differ from the base's.

    Its file names the base's architecture, or another one if it is given.
    """
    header, random = read_local_header(base), np.random.default_rng(seed)
    writer = gguf.GGUFWriter(path, architecture or str(header.values["general.architecture"]))
    writer.add_type("adapter")
    writer.add_string("adapter.type", "lora")
    writer.add_float32("adapter.lora.alpha", alpha)
    for tensor in header.tensors:
        if not any(part in tensor.name for part in MATRICES):
            continue
        columns, rows = tensor.shape
        a = random.standard_normal((rank, columns)) * strength / np.sqrt(columns)
        b = random.standard_normal((rows, rank)) * strength / np.sqrt(rank)
        writer.add_tensor(f"{tensor.name}.lora_a", a.astype(np.float32))
        writer.add_tensor(f"{tensor.name}.lora_b", b.astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
