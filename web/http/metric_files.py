"""Keep the metrics of all HTTP processes of one start in files that each of them can read, also after one has ended.

gunicorn's master process creates a folder and gives each process that it forks a *place*: a number that no living
process has. prometheus-client maps the metrics of a place to files in the folder, so they outlive a process that is
killed, and the process that takes over the place continues its counters. There are therefore never more files than
processes at the same time, and no counter falls. Gauges describe living processes: they end with their process.
"""

import itertools
import os
import shutil
import tempfile
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from prometheus_client import values
from prometheus_client.multiprocess import mark_process_dead

from shared.state_dir import FolderLock

#: The environment variable that tells prometheus-client the folder.
_FOLDER_VARIABLE = "PROMETHEUS_MULTIPROC_DIR"
_PREFIX = "penstock-metrics-"
#: A folder that was created less than this many seconds ago may belong to a start that has not locked it yet.
_UNLOCKED_S = 60.0
#: The lowest id of a user who is not a system user, for systemd.
_ORDINARY_UID = 1_000
#: The kinds of files of a place, as prometheus-client names them, and their sizes in bytes. They have room for the
#: series of all routes, methods and statuses, as a test checks. A file that has to grow does so without reserving the
#: space, and a process that writes to a mapped file of a full file system is killed.
FILE_BYTES = {"counter": 3 << 19, "histogram": 1 << 21, "gauge_livesum": 1 << 16, "gauge_livemax": 1 << 16}
PLACE_BYTES = sum(FILE_BYTES.values())


@dataclass(frozen=True)
class MetricFiles:
    """The folder of one start. The master process creates and removes it, and holds its lock as long as it lives."""

    path: Path
    #: The user and group of the processes, which are not those of the master process if it gives up its rights.
    _uid: int
    _gid: int
    _lock: FolderLock
    _master_pid: int

    @classmethod
    def create(cls, uid: int, gid: int, processes: int, parents: Iterable[str] = ()) -> "MetricFiles":
        """Create the folder for `processes` of this user and group, and remove those of starts that were killed.

        The folder stays this process's own: if the others have fewer rights, they cannot put a link into it, which this
        process would follow. `parents` are tried in their order; without any, folders in memory and for temporary
        files. Raises OSError if none of them can be used, or has no room for twice the processes, as during a reload.
        """
        room_bytes = 2 * processes * PLACE_BYTES
        faults = []
        for parent in parents or _usual_parents(uid):
            try:
                _remove_abandoned(Path(parent))
                if shutil.disk_usage(parent).free < room_bytes:
                    faults.append(f"{parent} has less than {room_bytes / (1 << 20):.0f} MiB of free space")
                    continue
                path = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=parent))
                lock = FolderLock.take(path / "lock")
                if uid != os.geteuid():
                    os.chown(path, -1, gid)
                    path.chmod(0o750)
            except OSError as error:
                faults.append(f"{parent}: {error.strerror}")
                continue
            if lock is not None:
                return cls(path, uid, gid, lock, os.getpid())
        raise OSError(f"no folder for the files of metrics can be created: {'; '.join(faults)}")

    def take_place(self, taken: Iterable[int | None]) -> int:
        """Return the lowest place that is not taken, after its files were prepared for a new process.

        Only the master process may call this, with the places of all processes that may still be alive. Raises OSError.
        """
        others = set(taken)
        place = next(number for number in itertools.count() if number not in others)
        self.end_gauges(place)
        for kind, size_bytes in FILE_BYTES.items():
            file = self.path / f"{kind}_{place}.db"
            if not file.exists():
                self._create(file, size_bytes)
        return place

    def _create(self, file: Path, size_bytes: int) -> None:
        """Create a file of zeros whose space is reserved.

        A reader must never see an empty file, so the file gets its size before it gets its name.
        """
        fresh = self.path / "fresh"
        fresh.unlink(missing_ok=True)
        fd = os.open(fresh, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            os.posix_fallocate(fd, 0, size_bytes)
            os.fchown(fd, self._uid, self._gid)
            fresh.replace(file)
        except OSError:
            fresh.unlink(missing_ok=True)
            raise
        finally:
            os.close(fd)

    def end_gauges(self, place: int) -> None:
        """Remove the gauges of a process that has ended."""
        mark_process_dead(place, str(self.path))  # type: ignore[no-untyped-call]  # has no types

    def join(self, place: int) -> None:
        """Keep all metrics that this process creates from now on in the files of its place."""
        os.environ[_FOLDER_VARIABLE] = str(self.path)
        values.ValueClass = values.MultiProcessValue(lambda: place)  # type: ignore[no-untyped-call]  # has no types

    def remove(self) -> None:
        """Remove the folder. Does nothing in a process that inherited this object."""
        if os.getpid() == self._master_pid:
            shutil.rmtree(self.path, ignore_errors=True)
            self._lock.close()


def shared_folder() -> Path | None:
    """Return the folder with the files of all processes of this start, or None if this process joined none."""
    folder = os.environ.get(_FOLDER_VARIABLE)
    return None if folder is None else Path(folder)


def _usual_parents(uid: int) -> tuple[str, str]:
    """Return the parents to try.

    Metrics change with each request, so files in memory are preferred: a write to a slow disk can block the event loop.
    But when an ordinary user logs out, systemd-logind removes what this user has in /dev/shm.
    """
    in_memory, temporary = "/dev/shm", tempfile.gettempdir()  # noqa: S108 - the folder's own name is random
    is_ordinary = uid >= _ORDINARY_UID and Path("/run/systemd/seats").exists()
    return (temporary, in_memory) if is_ordinary else (in_memory, temporary)


def _remove_abandoned(parent: Path) -> None:
    """Remove the folders of this user whose master process was killed: their locks are free."""
    for path in parent.glob(f"{_PREFIX}*"):
        with suppress(OSError):
            status = path.lstat()
            is_ours = path.is_dir() and not path.is_symlink() and status.st_uid == os.geteuid()
            is_new = time.time() - status.st_mtime < _UNLOCKED_S
            if not is_ours or is_new or not (path / "lock").exists():
                continue
            lock = FolderLock.take(path / "lock")
            if lock is not None:
                shutil.rmtree(path, ignore_errors=True)
                lock.close()
