"""Tests of odd values in the header of a model file."""

import struct

import pytest

from workers.engine.llama.gguf_header import layers_in

#: The number that stands for float32 in a GGUF file.
FLOAT32 = 6


@pytest.mark.parametrize("number", [float("inf"), float("nan")])
def test_a_number_of_layers_that_is_not_finite_says_nothing(tmp_path, number):
    name = b"llama.block_count"
    header = struct.pack("<4sIQQQ", b"GGUF", 3, 0, 1, len(name)) + name + struct.pack("<If", FLOAT32, number)
    path = tmp_path / "odd.gguf"
    path.write_bytes(header)
    assert layers_in(path) is None
