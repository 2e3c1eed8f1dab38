"""Creates the state folder with access for its user only, locks it, and reads and writes JSON notes in it."""

import fcntl
import json
import os
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shared.errors import EmbeddedStoreError

#: The maximum length, in bytes, of a unix socket path that is valid on every supported system. The lowest limit is that
#: of macOS: 104 bytes, including a final NUL.
MAX_SOCKET_PATH = 103


def make_private_dir(folder: Path) -> Path:
    """Create the folder if it does not exist, and set its mode to 0700 (owner only). Raises OSError."""
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    folder.chmod(0o700)
    return folder


def write_note(path: Path, note: dict[str, Any]) -> None:
    """Replace a JSON note atomically, so that a reader never sees a partly written one. Raises OSError."""
    fd, name = tempfile.mkstemp(dir=path.parent, prefix=path.name)  # mode 0600
    try:
        with os.fdopen(fd, "w", encoding="utf-8") as file:
            json.dump(note, file)
        Path(name).replace(path)
    except OSError:
        Path(name).unlink(missing_ok=True)
        raise


def read_note(path: Path) -> dict[str, Any]:
    """Return the JSON object in a note, or {} if the file is missing, unreadable or not a JSON object."""
    try:
        note = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return note if isinstance(note, dict) else {}


def find_url(state: Path) -> str:
    """Return the URL of the store that runs in a state folder. Raises EmbeddedStoreError if none is running."""
    url = read_note(state / "store.json").get("url")
    if not isinstance(url, str):
        raise EmbeddedStoreError(f"no store runs in {state}; start one with `penstock up`, or set REDIS_URL")
    return url


def find_key_prefix(state: Path) -> str:
    """Return the key prefix of the cell that `penstock up` runs in a state folder; "" if it has none."""
    return str(read_note(state / "store.json").get("key_prefix", ""))


@dataclass(frozen=True)
class FolderLock:
    """A lock file held by this process and by every process that inherits `fd`.

    The kernel releases the lock when the last of these processes has ended, even if it was killed with SIGKILL. As long
    as the lock is held, at least one of them is therefore alive. A note that a holder wrote into the file stays there
    after the lock is released.
    """

    path: Path
    fd: int

    @classmethod
    def take(cls, path: Path) -> "FolderLock | None":
        """Acquire the lock and return it, or return None if a living process holds it. Raises OSError."""
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
        """Write a note about the holder into the lock file, for other processes to read. Raises OSError.

        The new note overwrites the old one in place; the file is not truncated first. If this process died or the disk
        filled up after a truncation, no process could find the server that holds the lock. If the old note was longer,
        its remaining bytes are overwritten with spaces, which JSON parsers ignore.
        """
        text = json.dumps(note).encode()
        os.pwrite(self.fd, text.ljust(os.fstat(self.fd).st_size), 0)

    def close(self) -> None:
        """Close this process's file descriptor; processes that inherited the lock continue to hold it."""
        os.close(self.fd)


def lock_state_dir(state: Path, url: str) -> FolderLock:
    """Lock the state folder for this `penstock up` process, which serves at `url`; only one process can hold the lock.

    Raises EmbeddedStoreError if the folder cannot be used, or if another process holds the lock. In the second case,
    the message contains the pid and the URL of that process.
    """
    lock = None
    try:
        lock = FolderLock.take(make_private_dir(state) / "up.lock")
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


def up_url(state: Path) -> str:
    """Return the URL at which the latest `penstock up` with this state folder serves or served, or "" if none did."""
    return str(read_note(state / "up.lock").get("url") or "")


def short_socket_folder(known: str) -> Path:
    """Return a private folder whose path is short enough for a socket.

    `known` is the path of the previous socket, or "". If the folder of that socket is still private and owned by this
    user, the same folder is returned; otherwise a new folder is created.
    """
    if known and _is_private_to_user(Path(known).parent):
        return Path(known).parent
    base = tempfile.gettempdir()
    # 40 bytes are enough for the random folder name (17 bytes) and the name of the socket.
    if len(os.fsencode(base)) > MAX_SOCKET_PATH - 40:
        base = "/tmp"  # noqa: S108 - mkdtemp creates a new folder with mode 0700 in it
    return Path(tempfile.mkdtemp(prefix="penstock-", dir=base))


def _is_private_to_user(folder: Path) -> bool:
    """Return whether `folder` is a real directory that only this user can access.

    In a shared folder such as /tmp, another user could have created a folder or a symlink with this name.
    """
    try:
        status = folder.lstat()
    except OSError:
        return False
    return folder.is_dir() and not folder.is_symlink() and status.st_uid == os.getuid() and status.st_mode & 0o077 == 0
