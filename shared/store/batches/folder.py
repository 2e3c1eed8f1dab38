"""The folder in which the contents of files are kept, if PENSTOCK_FILES_DIR names one; all doors share it."""

import errno
import itertools
import os
import re
import secrets
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from shared.errors import FilesUnavailable

#: The form of an id; no such id leads out of the folder.
_NAME = re.compile(r"[A-Za-z0-9_-]{1,80}\Z")
#: The ids that doors give to files, with the name of a cell or without. Nothing else in the folder is ever cleared.
_ID_OF_DOOR = re.compile(r"file-(?:[a-z0-9]{1,16}-)?[0-9a-f]{24}\Z")
#: The file with the id of the folder. Doors that read the same id share the folder.
_MARKER = ".penstock"
_MARK = re.compile(r"[0-9a-f]{32}\Z")
#: How many names are read from the folder at once.
_AT_ONCE = 256
#: The folder in that of the cell `default` with those of other cells.
OF_CELLS = "cells"
#: The errors of a disk, a quota or a file that can take no more bytes. A retry fails until something is removed.
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


def run_here(call: Callable[..., Any], *arguments: Any) -> Any:
    return call(*arguments)


class FilesFolder:
    """A folder with one file for each id. Every method raises FilesUnavailable if the folder cannot be used."""

    def __init__(self, path: Path, run: Callable[..., Any] = run_here) -> None:
        """`run` calls a function with its arguments; a process with an event loop calls it in another thread.

        It may raise TimeoutError if the disk does not answer.
        """
        self.path, self._run = path, run

    def mark(self) -> tuple[str, bool]:
        """Return the id of the folder, and whether this call has made it. The folder is created with mode 0700."""
        marked: tuple[str, bool] = self._on_disk(_mark, self.path)
        return marked

    def check_writable(self) -> None:
        self._on_disk(_probe, self.path)

    def has_mark(self, mark: str) -> bool:
        """Return whether this is the id of the folder."""
        return bool(self._on_disk(_has_mark, self.path, mark))

    def is_empty(self) -> bool:
        """Return whether the folder has nothing but its id, folders of other cells, and what a new file system has."""
        return bool(self._on_disk(_is_empty, self.path))

    def unmark(self) -> None:
        self._on_disk(_remove, self.path / _MARKER)

    def old_files(self, least_age_s: float) -> Iterator[str]:
        """Yield the ids of the files to which nothing was written for at least so long."""
        ids = _old_files(self.path, least_age_s)
        while some := self._on_disk(list, itertools.islice(ids, _AT_ONCE)):
            yield from some

    def write(self, file_id: str, offset: int, content: bytes) -> None:
        """Write a part of a file; the file is created with mode 0600."""
        self._on_disk(_write, self._path_of(file_id), offset, content)

    def sync(self, file_id: str) -> None:
        """Return when the file is on the disk."""
        for path in (self._path_of(file_id), self.path):
            self._on_disk(_sync, path)

    def read(self, file_id: str, offset: int, length: int) -> bytes | None:
        """Return `length` bytes from an offset on, or None if the file does not have them any more."""
        content: bytes = self._on_disk(_read, self._path_of(file_id), offset, length)
        return content if len(content) == length else None

    def remove(self, file_id: str, least_age_s: float = 0.0) -> None:
        """Remove a file, if it exists and nothing was written to it for at least so long.

        If the disk hangs, the file may be removed later, also after a retry has written it again. So the caller must
        never write a file with this id again, or give an age.
        """
        self._on_disk(_remove, self._path_of(file_id), least_age_s)

    def _on_disk(self, call: Callable[..., Any], *arguments: Any) -> Any:
        try:
            return self._run(call, *arguments)
        except OSError as error:
            message = f"PENSTOCK_FILES_DIR={str(self.path)!r} cannot be used: {error}"
            raise FilesUnavailable(message, is_full=error.errno in _FULL) from error

    def _path_of(self, file_id: str) -> Path:
        if not _NAME.match(file_id):
            raise FilesUnavailable(f"{file_id[:80]!r} is no id of a file in a folder")
        return self.path / file_id


def _mark(folder: Path) -> tuple[str, bool]:
    mark = secrets.token_hex(16)
    if folder.parent.name == OF_CELLS:
        # The folders above that of a cell are readable by others unless they are made so that they are not.
        folder.parent.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder.parent.mkdir(mode=0o700, exist_ok=True)
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    # A link makes the whole marker appear at once, and only if the folder has no marker yet.
    draft = folder / f"{_MARKER}.{mark}"
    draft.write_text(mark)
    try:
        (folder / _MARKER).hardlink_to(draft)
    except FileExistsError:
        return _read_mark(folder), False
    finally:
        draft.unlink()
    return mark, True


def _read_mark(folder: Path) -> str:
    found = (folder / _MARKER).read_bytes().decode("utf-8", "replace")
    if not _MARK.match(found):
        raise OSError(f"{_MARKER} contains {found[:60]!r} and no id of a folder")
    return found


def _has_mark(folder: Path, mark: str) -> bool:
    try:
        return _read_mark(folder) == mark
    except FileNotFoundError:
        return False


def _probe(folder: Path) -> None:
    probe = folder / f"{_MARKER}.{secrets.token_hex(16)}"
    probe.touch(mode=0o600)
    probe.unlink()


def _is_empty(folder: Path) -> bool:
    with os.scandir(folder) as entries:
        return all(entry.name.startswith(_MARKER) or entry.name in {"lost+found", OF_CELLS} for entry in entries)


def _old_files(folder: Path, least_age_s: float) -> Iterator[str]:
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                if _ID_OF_DOOR.match(entry.name) and time.time() - entry.stat().st_mtime >= least_age_s:
                    yield entry.name
    except FileNotFoundError:
        # Another process has removed a file meanwhile; the next pass examines the rest.
        return


def _remove(path: Path, least_age_s: float = 0.0) -> None:
    try:
        if least_age_s <= 0 or time.time() - path.stat().st_mtime >= least_age_s:
            path.unlink()
    except FileNotFoundError:
        return


def _write(path: Path, offset: int, content: bytes) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        written = 0
        while written < len(content):
            written += os.pwrite(descriptor, content[written:], offset + written)
    finally:
        os.close(descriptor)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _read(path: Path, offset: int, length: int) -> bytes:
    """Return what the file has of these bytes; nothing if there is no such file."""
    try:
        with path.open("rb") as file:
            file.seek(offset)
            return file.read(length)
    except FileNotFoundError:
        return b""
