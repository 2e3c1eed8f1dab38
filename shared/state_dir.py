"""The state folder: private to its user, locked by the kernel, with small notes that outlive a process."""

import fcntl
import json
import os
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shared.errors import EmbeddedStoreError

#: The longest path of a unix socket that every system takes: macOS has 104 bytes, the last a NUL.
LONGEST_SOCKET_PATH = 103


def private(folder: Path) -> Path:
    """Make the folder if it is not there, and keep others out of it (0700). Raises OSError."""
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    folder.chmod(0o700)
    return folder


def write_note(path: Path, note: dict[str, Any]) -> None:
    """Replace a JSON note in one step: a reader sees the old one or the new one, never half of it."""
    fd, name = tempfile.mkstemp(dir=path.parent, prefix=path.name)  # mode 0600
    try:
        with os.fdopen(fd, "w", encoding="utf-8") as file:
            json.dump(note, file)
        Path(name).replace(path)
    except OSError:
        Path(name).unlink(missing_ok=True)
        raise


def read_note(path: Path) -> dict[str, Any]:
    """Read the note, or {} when there is none or it is not one."""
    try:
        note = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return note if isinstance(note, dict) else {}


@dataclass(frozen=True)
class FolderLock:
    """A lock file held by this process, and by every process that inherits `fd`.

    The kernel lets go of it when the last of them is dead, however they died, so that a lock which
    is held proves a living holder. What its holder wrote into the file stays for those who come later.
    """

    path: Path
    fd: int

    @classmethod
    def take(cls, path: Path) -> "FolderLock | None":
        """Take the lock, or None when a living process holds it. Raises OSError."""
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(fd)
            if isinstance(error, BlockingIOError):
                return None
            raise
        return cls(path, fd)

    def write(self, note: dict[str, Any]) -> None:
        """Write into the lock file what others should know of its holder. Raises OSError.

        Over what stands there and never by emptying it first: if the holder dies or the disk is full in between,
        nobody could find the server that holds the lock. Blanks, which JSON skips, cover the rest of a longer note.
        """
        text = json.dumps(note).encode()
        os.pwrite(self.fd, text.ljust(os.fstat(self.fd).st_size), 0)

    def close(self) -> None:
        """Let go of it here; those who inherited it keep it."""
        os.close(self.fd)


def hold_state(state: Path, url: str) -> FolderLock:
    """Take the state folder for this `penstock up`, which serves at `url`; at most one at a time has it.

    Raises EmbeddedStoreError, naming the pid and the URL of a living holder.
    """
    lock = None
    try:
        lock = FolderLock.take(private(state) / "up.lock")
        if lock is not None:
            lock.write({"pid": os.getpid(), "url": url})
            return lock
    except OSError as error:
        if lock is not None:
            lock.close()
        raise EmbeddedStoreError(f"the state folder {state} cannot be used: {error}") from error
    holder = read_note(state / "up.lock")
    raise EmbeddedStoreError(
        f"`penstock up` already runs in {state} as process {holder.get('pid', 'unknown')}"
        f"{', at ' + holder['url'] if holder.get('url') else ''}; use it, stop it, or name another --state-dir"
    )


def short_socket_folder(known: str) -> Path:
    """A private folder with a path short enough for a socket: that of the `known` socket if it still is ours."""
    if known and _is_ours(Path(known).parent):
        return Path(known).parent
    base = tempfile.gettempdir()
    # Less a random name of 17 bytes and a socket's name.
    if len(os.fsencode(base)) > LONGEST_SOCKET_PATH - 40:
        base = "/tmp"  # noqa: S108 - mkdtemp makes a new folder in it with mode 0700
    return Path(tempfile.mkdtemp(prefix="penstock-", dir=base))


def _is_ours(folder: Path) -> bool:
    """Whether it is a folder that we made: in a shared place, somebody else could have."""
    try:
        facts = folder.lstat()
    except OSError:
        return False
    return folder.is_dir() and not folder.is_symlink() and facts.st_uid == os.getuid() and facts.st_mode & 0o077 == 0
