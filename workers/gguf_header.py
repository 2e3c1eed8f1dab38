"""Reads the header of a GGUF file: its metadata and its table of tensors, without the weights.

A header can claim any length. So nothing is read beyond the file's end or beyond MAX_HEADER_BYTES, long arrays such as
the vocabulary are skipped and not kept, and what is wrong with a file is said in one sentence. The format is described
in ggml's docs/gguf.md.
"""

import math
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from shared.errors import ModelError

#: Maximum number of layers in llama.cpp (LLAMA_MAX_LAYERS).
MAX_LAYERS = 512
#: No header is longer. The longest known ones, with vocabularies of 262,144 tokens, have 16 MiB.
MAX_HEADER_BYTES = 64 << 20
#: Most metadata values, and most tensors. Models of 128 layers have 2,000 tensors.
_MAX_VALUES = 1 << 16
#: Longest name in bytes (the specification's limit), and the longest text and array that are kept.
_MAX_NAME_BYTES, _MAX_TEXT_BYTES, _MAX_ITEMS = (1 << 16) - 1, 1 << 12, MAX_LAYERS
#: Most dimensions of a tensor in ggml (GGML_MAX_DIMS).
_MAX_DIMENSIONS = 4

_STRING, _ARRAY = 8, 9
#: The format's number of a type → its format for `struct`. The sizes are those of the GGUF specification.
_NUMBERS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_VERSIONS = (2, 3)


@dataclass(frozen=True)
class Skipped:
    """An array or a text that is too long to be kept: the number of its items or bytes."""

    length: int


Value = int | float | str | tuple[int | float, ...] | Skipped


@dataclass(frozen=True)
class Tensor:
    """A row of the table of tensors. The first dimension of `shape` is that of a row, as in ggml."""

    name: str
    shape: tuple[int, ...]
    #: ggml's number of the tensor's type.
    kind: int
    #: Where its data begin, in bytes after the end of the header.
    offset_bytes: int

    @property
    def elements(self) -> int:
        return math.prod(self.shape)


@dataclass(frozen=True)
class Header:
    """The metadata and the tensors of one GGUF file, which has `size_bytes`. The data begin at `data_start_bytes`."""

    name: str
    values: dict[str, Value]
    tensors: tuple[Tensor, ...]
    data_start_bytes: int
    size_bytes: int


class HeaderUnread(ModelError):
    """A file cannot be read now, and may have a valid header."""


class HeaderFault(ModelError):
    """A file has no valid GGUF header; the message names the file and says what is wrong."""


class Bytes(Protocol):
    """The source of a header: a file that is open for reading, or a part of one on another machine."""

    def read(self, n: int, /) -> bytes:
        """Return the next `n` bytes, or fewer at the end."""

    def seek(self, offset: int, whence: int, /) -> int:
        """Move by `offset` bytes from the current position (`whence` is 1)."""


def layers_in(path: Path) -> int | None:
    """Return the number of layers that the file claims to have (`block_count`), or None if that cannot be read.

    llama.cpp ends the whole process, without a message, if this number is 0 or more than it supports. If the header is
    damaged, llama.cpp's own message is better than one from here. Raises OSError.
    """
    with path.open("rb") as file:
        reader = _Reader(file, path.name, path.stat().st_size)
        try:
            n_values, _ = _read_counts(reader)
            for name, value in _read_values(reader, n_values):
                if name.endswith(".block_count") and isinstance(value, int | float):
                    return int(value)
        except (HeaderFault, ValueError, OverflowError):  # a number that is not finite is not an int
            return None
    return None


def read_local_header(path: Path) -> Header:
    """Return the header of a file on this machine. Raises HeaderUnread if it cannot be read, HeaderFault if damaged."""
    try:
        with path.open("rb") as file:
            return read_header(file, path.name, path.stat().st_size)
    except OSError as fault:
        raise HeaderUnread(f"the model {path} cannot be read: {fault.strerror or fault}") from None


def read_header(file: Bytes, name: str, size_bytes: int) -> Header:
    """Return the header that `file` begins with. Raises HeaderFault.

    `name` is for messages. The table of tensors is compared with the file's size, so that a file that was cut is
    recognized.
    """
    reader = _Reader(file, name, size_bytes)
    n_values, n_tensors = _read_counts(reader)
    values: dict[str, Value] = {}
    for key, value in _read_values(reader, n_values):
        if key in values:
            raise HeaderFault(f"{name} has the metadata key {key!r} twice")
        values[key] = value
    tensors = tuple(_read_tensor(reader, number) for number in range(n_tensors))
    repeated = len(tensors) - len({tensor.name for tensor in tensors})
    if repeated:
        raise HeaderFault(f"{name} has {repeated} tensors whose names occur twice")
    alignment = values.get("general.alignment", 32)
    if not isinstance(alignment, int) or not 0 < alignment <= 1 << 20:
        raise HeaderFault(f"{name} has general.alignment={alignment!r}, which is not a number of bytes")
    return Header(name, values, tensors, -(-reader.position // alignment) * alignment, size_bytes)


class _Reader:
    """Reads numbers and texts, and never beyond the end of the file or of the longest header."""

    def __init__(self, file: Bytes, name: str, size_bytes: int) -> None:
        self._file, self._size_bytes = file, size_bytes
        self.name = name
        self.position = 0

    def take(self, n: int, what: str) -> bytes:
        self._claim(n, what)
        found = self._file.read(n)
        if len(found) != n:
            raise self._cut(what)
        return found

    def skip(self, n: int, what: str) -> None:
        self._claim(n, what)
        self._file.seek(n, 1)

    def number(self, kind: int, what: str) -> int | float:
        form = "<" + _NUMBERS[kind]
        (number,) = struct.unpack(form, self.take(struct.calcsize(form), what))
        return float(number) if kind in {6, 12} else int(number)

    def count(self, what: str) -> int:
        return int(self.number(10, what))

    def text(self, what: str, longest_bytes: int) -> str:
        length = self.count(f"the length of {what}")
        if length > longest_bytes:
            raise HeaderFault(f"{self.name} is damaged: {what} has {length} bytes, and {longest_bytes} are allowed")
        try:
            return self.take(length, what).decode()
        except UnicodeDecodeError:
            raise HeaderFault(f"{self.name} is damaged: {what} is not UTF-8") from None

    def _claim(self, n: int, what: str) -> None:
        end = self.position + n
        if end > self._size_bytes:
            raise self._cut(what)
        if end > MAX_HEADER_BYTES:
            raise HeaderFault(f"{self.name} is damaged: its header has more than {MAX_HEADER_BYTES} bytes, in {what}")
        self.position = end

    def _cut(self, what: str) -> HeaderFault:
        return HeaderFault(f"{self.name} is cut or damaged: its {self._size_bytes} bytes end within {what}")


def _read_counts(reader: _Reader) -> tuple[int, int]:
    magic = reader.take(4, "the magic number")
    if magic != b"GGUF":
        raise HeaderFault(f"{reader.name} is not a GGUF file: it begins with {magic!r}, not b'GGUF'")
    version = int(reader.number(4, "the version"))
    if version not in _VERSIONS:
        # A file for big-endian machines has its version in the other two bytes.
        big = " (the file is big-endian)" if version and not version & 0xFFFF else ""
        raise HeaderFault(f"{reader.name} has GGUF version {version}{big}; versions 2 and 3 can be read")
    n_tensors = reader.count("the number of tensors")
    n_values = reader.count("the number of metadata values")
    for n, what in ((n_tensors, "tensors"), (n_values, "metadata values")):
        if n > _MAX_VALUES:
            raise HeaderFault(f"{reader.name} is damaged: it claims to have {n} {what}, more than {_MAX_VALUES}")
    return n_values, n_tensors


def _read_values(reader: _Reader, n_values: int) -> Iterator[tuple[str, Value]]:
    for number in range(n_values):
        key = reader.text(f"the name of metadata value {number}", _MAX_NAME_BYTES)
        kind = int(reader.number(4, f"the type of {key!r}"))
        yield key, _read_value(reader, kind, f"the value of {key!r}")


def _read_value(reader: _Reader, kind: int, what: str) -> Value:
    if kind in _NUMBERS:
        return reader.number(kind, what)
    if kind == _STRING:
        length = reader.count(what)
        if length > _MAX_TEXT_BYTES:
            reader.skip(length, what)
            return Skipped(length)
        return reader.take(length, what).decode("utf-8", "replace")
    if kind != _ARRAY:
        raise HeaderFault(f"{reader.name} is damaged: {what} has the unknown type {kind}")
    item = int(reader.number(4, what))
    length = reader.count(what)
    if item == _STRING:
        for _ in range(length):
            reader.skip(reader.count(what), what)
    elif item not in _NUMBERS:
        raise HeaderFault(f"{reader.name} is damaged: {what} is an array of the type {item}, which none can be of")
    elif length <= _MAX_ITEMS:
        return tuple(reader.number(item, what) for _ in range(length))
    else:
        reader.skip(length * struct.calcsize("<" + _NUMBERS[item]), what)
    return Skipped(length)


def _read_tensor(reader: _Reader, number: int) -> Tensor:
    name = reader.text(f"the name of tensor {number}", _MAX_NAME_BYTES)
    what = f"the shape of tensor {name!r}"
    n_dimensions = int(reader.number(4, what))
    if not 1 <= n_dimensions <= _MAX_DIMENSIONS:
        raise HeaderFault(f"{reader.name} is damaged: tensor {name!r} has {n_dimensions} dimensions")
    shape = tuple(reader.count(what) for _ in range(n_dimensions))
    # ggml counts elements in 63 bits.
    if not 0 < math.prod(shape) < 1 << 63:
        raise HeaderFault(f"{reader.name} is damaged: tensor {name!r} has the shape {list(shape)}")
    return Tensor(name, shape, int(reader.number(4, what)), reader.count(what))
