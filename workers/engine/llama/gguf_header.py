"""Reads a number from the header of a GGUF file, before llama.cpp loads the file.

llama.cpp ends the whole process, without a message, if the file claims to have no layers or more than it supports.
"""

import struct
from pathlib import Path
from typing import BinaryIO

#: Maximum number of layers in llama.cpp (LLAMA_MAX_LAYERS).
MAX_LAYERS = 512

_STRING, _ARRAY = 8, 9
#: The format's number of a type → its format for `struct`. The sizes are those of the GGUF specification.
_NUMBERS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
#: A longer text or array is not skipped: the file is damaged, or the number comes after the vocabulary.
_MAX_ITEMS = 1 << 24


def layers_in(path: Path) -> int | None:
    """Return the number of layers that the file claims to have (`block_count`), or None if that cannot be read.

    If the header is damaged, llama.cpp's own message is better than one from here. Raises OSError.
    """
    with path.open("rb") as file:
        try:
            return _block_count(file)
        except (struct.error, UnicodeDecodeError, ValueError, OverflowError, KeyError, RecursionError):
            return None


def _block_count(file: BinaryIO) -> int | None:
    _, _, _, n_values = struct.unpack("<4sIQQ", file.read(24))
    for _ in range(min(n_values, _MAX_ITEMS)):
        name = file.read(_length(file)).decode()
        (kind,) = struct.unpack("<I", file.read(4))
        if name.endswith(".block_count") and kind in _NUMBERS:
            return int(_number(file, kind))
        _skip(file, kind)
    return None


def _skip(file: BinaryIO, kind: int) -> None:
    if kind == _STRING:
        file.seek(_length(file), 1)
    elif kind == _ARRAY:
        (item,) = struct.unpack("<I", file.read(4))
        n = _length(file)
        if item in _NUMBERS:
            file.seek(n * struct.calcsize("<" + _NUMBERS[item]), 1)
        else:
            for _ in range(n):
                _skip(file, item)
    else:
        _number(file, kind)


def _number(file: BinaryIO, kind: int) -> float:
    form = "<" + _NUMBERS[kind]
    (number,) = struct.unpack(form, file.read(struct.calcsize(form)))
    return float(number) if kind in {6, 12} else int(number)


def _length(file: BinaryIO) -> int:
    (n,) = struct.unpack("<Q", file.read(8))
    if n > _MAX_ITEMS:
        raise ValueError(f"a length of {n}")
    return int(n)
