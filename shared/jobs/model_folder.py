"""Lists the models in a folder of GGUF files, as people have them: nested, split, linked, and beside other files."""

import os
import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

#: Matches the name of one file of a model that is split into several files; the groups are stem, number and count.
SPLIT = re.compile(r"(.*)-(\d{5})-of-(\d{5})\.gguf", re.IGNORECASE)
#: How deep folders are searched below the first, and how many entries they may have together.
_DEPTH, MOST_ENTRIES = 5, 50_000
#: The longest name of a model, in characters.
_LONGEST_NAME = 200

#: The values that name a file's purpose are among the first; no more of the header is read.
_READ_BYTES = 16 << 10
#: The format's numbers of a text and an array, and the sizes in bytes of its other types.
_STRING, _ARRAY = 8, 9
_SIZES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
#: Values of `general.type` and of `general.architecture` of files that belong to a model.
_TYPES = {"adapter": "an adapter", "mmproj": "a projector", "imatrix": "an importance matrix", "vocab": "a vocabulary"}
_ARCHITECTURES = {"clip": "a projector", "controlvector": "a control vector"}


@dataclass(frozen=True)
class FolderModel:
    """A model in a folder: its name, and its first file."""

    name: str
    path: Path


@dataclass(frozen=True)
class LeftOut:
    """A GGUF file that is not served, and the reason as a part of a sentence."""

    path: Path
    why: str


class TooManyFiles(Exception):
    """The folder has more than MOST_ENTRIES entries."""


def models_in(folder: Path) -> Iterator[FolderModel | LeftOut]:
    """Yield the models in the order of their file names, and the files that are left out.

    Hidden files, further parts of a split model, and links to folders are passed over without a word. Of two models
    whose names would be one, or become the same in store keys, only the first is yielded as a model. Raises OSError if
    the folder cannot be read, and TooManyFiles.
    """
    taken: dict[str, Path] = {}
    for path in sorted(_files(folder), key=lambda path: (path.name, path)):
        part = SPLIT.fullmatch(path.name)
        if part is not None and int(part[2]) != 1:
            continue
        name = part[1] if part else path.stem
        if not _may_be_served(name):
            yield LeftOut(path, "its name has characters that a model's name cannot have, or is too long")
            continue
        try:
            stat = path.stat()
            purpose = _purpose(path, part is not None, stat.st_size, stat.st_mtime_ns)
        except OSError as fault:
            yield LeftOut(path, f"it cannot be read: {fault.strerror or fault}")
            continue
        if path.name.lower().startswith("mmproj"):
            purpose = "a projector"
        earlier = taken.get(model_slug(name))
        if purpose is not None:
            yield LeftOut(path, f"it is {purpose}, not a model")
        elif earlier is not None:
            yield LeftOut(path, f"its name and that of {earlier} would be one; list the models as NAME=MODEL,...")
        else:
            taken[model_slug(name)] = path
            yield FolderModel(name, path)


def _may_be_served(name: str) -> bool:
    """Return whether a model can have this name: printable, without the comma that separates names."""
    return name.isprintable() and "," not in name and name == name.strip() and len(name) <= _LONGEST_NAME


def model_slug(model: str) -> str:
    """Return the model's name for use in keys: all characters but letters, digits, `.`, `_` and `-` become `-`."""
    return re.sub(r"[^A-Za-z0-9._-]", "-", model)


@lru_cache(maxsize=4096)
def _purpose(path: Path, is_part: bool, _size_bytes: int, _changed_ns: int) -> str | None:
    return _other_purpose(path, is_part=is_part)


def _files(folder: Path) -> Iterator[Path]:
    """Yield the GGUF files in the folder and the folders in it."""
    entries = 0
    folders = [(folder.absolute(), 0)]
    while folders:
        current, depth = folders.pop()
        try:
            with os.scandir(current) as found:
                for entry in found:
                    entries += 1
                    if entries > MOST_ENTRIES:
                        raise TooManyFiles
                    if entry.name.startswith("."):
                        continue
                    if entry.is_dir(follow_symlinks=False):
                        if depth < _DEPTH:
                            folders.append((current / entry.name, depth + 1))
                    # Not by the entry, which raises an exception for a link to itself.
                    elif entry.name.lower().endswith(".gguf") and os.path.isfile(entry.path):  # noqa: PTH113 - see above
                        yield current / entry.name
        except OSError:
            if depth == 0:
                raise


def _other_purpose(path: Path, *, is_part: bool) -> str | None:
    """Return the purpose of a GGUF file if it is not a model's, by the first values of its header, or else None.

    `is_part` says that the file is the first of several, which may have no tensors. Raises OSError.
    """
    with path.open("rb") as file:
        start = file.read(_READ_BYTES)
    if len(start) < 24 or not start.startswith(b"GGUF"):
        return None
    tensors, values = struct.unpack_from("<QQ", start, 8)
    for key, text in _texts(start, values):
        if key == "general.type" and text in _TYPES:
            return _TYPES[text]
        if key == "general.architecture" and text in _ARCHITECTURES:
            return _ARCHITECTURES[text]
    return "a vocabulary" if tensors == 0 and not is_part else None


def _texts(start: bytes, count: int) -> Iterator[tuple[str, str]]:
    """Yield the keys and values that are texts, until the first that is not wholly in `start`."""
    position = 24
    try:
        for _ in range(count):
            key, position = _text_at(start, position)
            (kind,) = struct.unpack_from("<I", start, position)
            position += 4
            if kind == _STRING:
                text, position = _text_at(start, position)
                yield key, text
            elif kind == _ARRAY:
                item, length = struct.unpack_from("<IQ", start, position)
                position += 12 + _SIZES[item] * length
            else:
                position += _SIZES[kind]
    except (struct.error, KeyError, EOFError):
        return


def _text_at(start: bytes, position: int) -> tuple[str, int]:
    (length,) = struct.unpack_from("<Q", start, position)
    end = position + 8 + length
    if end > len(start):
        raise EOFError
    return start[position + 8 : end].decode("utf-8", "replace"), end
