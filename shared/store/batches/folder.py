"""The folder in which the contents of files are kept, if PENSTOCK_FILES_DIR names one; all doors share it."""

import os
import re
import secrets
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from shared.errors import StoreUnavailable

#: What an id may be, so that it does not lead out of the folder.
_NAME = re.compile(r"[A-Za-z0-9_-]{1,80}\Z")
#: The ids that doors give to files. Nothing else in the folder is ever cleared.
_ID_OF_DOOR = re.compile(r"file-[0-9a-f]{24}\Z")
#: The file with the id of the folder, by which doors recognize that they share it.
_MARKER = ".penstock"
_MARK = re.compile(r"[0-9a-f]{32}\Z")


def run_here(call: Callable[..., Any], *arguments: Any) -> Any:
    """Call a function, and wait for the disk in this thread."""
    return call(*arguments)


class FilesFolder:
    """A folder with one file for each id. Every method raises StoreUnavailable if the folder cannot be used."""

    def __init__(self, path: Path, run: Callable[..., Any] = run_here) -> None:
        """`run` calls a function with its arguments; a process with an event loop calls it in another thread."""
        self.path, self.run = path, run

    def mark(self) -> tuple[str, bool]:
        """Return the id of the folder, and whether this call has made it. The folder is created with mode 0700."""
        mark = secrets.token_hex(16)
        try:
            self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
            # A link makes the whole marker appear at once, and only if there is none.
            draft = self.path / f"{_MARKER}.{mark}"
            draft.write_text(mark)
            try:
                (self.path / _MARKER).hardlink_to(draft)
            except FileExistsError:
                return self._read_mark(), False
            finally:
                draft.unlink()
        except OSError as error:
            raise self._unavailable(error) from error
        return mark, True

    def check_writable(self) -> None:
        """Write and remove a file; the folder must exist."""
        probe = self.path / f"{_MARKER}.{secrets.token_hex(16)}"
        try:
            probe.touch(mode=0o600)
            probe.unlink()
        except OSError as error:
            raise self._unavailable(error) from error

    def has_mark(self, mark: str) -> bool:
        """Return whether this is the id of the folder."""
        try:
            return self._read_mark() == mark
        except FileNotFoundError:
            return False
        except OSError as error:
            raise self._unavailable(error) from error

    def is_empty(self) -> bool:
        """Return whether the folder has nothing but its id, and what a new file system has in its root."""
        try:
            with os.scandir(self.path) as entries:
                return all(entry.name.startswith(_MARKER) or entry.name == "lost+found" for entry in entries)
        except OSError as error:
            raise self._unavailable(error) from error

    def unmark(self) -> None:
        """Remove the id of the folder."""
        try:
            (self.path / _MARKER).unlink(missing_ok=True)
        except OSError as error:
            raise self._unavailable(error) from error

    def _read_mark(self) -> str:
        found = (self.path / _MARKER).read_bytes().decode("utf-8", "replace")
        if not _MARK.match(found):
            raise OSError(f"{_MARKER} contains {found[:60]!r} and no id of a folder")
        return found

    def old_files(self, least_age_s: float) -> Iterator[str]:
        """Yield the ids of the files to which nothing was written for at least so long."""
        try:
            with os.scandir(self.path) as entries:
                for entry in entries:
                    if _ID_OF_DOOR.match(entry.name) and time.time() - entry.stat().st_mtime >= least_age_s:
                        yield entry.name
        except FileNotFoundError:
            # Another process has removed a file meanwhile; the next pass examines the rest.
            return
        except OSError as error:
            raise self._unavailable(error) from error

    def write(self, file_id: str, offset: int, content: bytes) -> None:
        """Write a part of a file; the file is created with mode 0600."""
        try:
            self.run(_write, self._path_of(file_id), offset, content)
        except OSError as error:
            raise self._unavailable(error) from error

    def sync(self, file_id: str) -> None:
        """Return when the file is on the disk."""
        try:
            for path in (self._path_of(file_id), self.path):
                self.run(_sync, path)
        except OSError as error:
            raise self._unavailable(error) from error

    def read(self, file_id: str, offset: int, length: int) -> bytes | None:
        """Return `length` bytes from an offset on, or None if the file does not have them any more."""
        try:
            content: bytes = self.run(_read, self._path_of(file_id), offset, length)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise self._unavailable(error) from error
        return content if len(content) == length else None

    def remove(self, file_id: str) -> None:
        """Remove a file, if it exists."""
        try:
            self.run(self._path_of(file_id).unlink, True)  # noqa: FBT003  # missing_ok
        except OSError as error:
            raise self._unavailable(error) from error

    def _path_of(self, file_id: str) -> Path:
        if not _NAME.match(file_id):
            raise StoreUnavailable(f"{file_id[:80]!r} is no id of a file in a folder")
        return self.path / file_id

    def _unavailable(self, error: Exception) -> StoreUnavailable:
        return StoreUnavailable(f"PENSTOCK_FILES_DIR={str(self.path)!r} cannot be used: {error}")


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
    with path.open("rb") as file:
        file.seek(offset)
        return file.read(length)
