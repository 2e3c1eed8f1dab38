"""The embedded database: a PostgreSQL server that `penstock up` starts in the state folder, and stops when it ends.

    STATE/database.json           tells other commands how to connect to the running server: url, pid, started_by
    STATE/database/data/          the server's files
    STATE/database/server.log     what the server writes
    STATE/database/server.lock    inherited and held by the server; contains the folder of its socket, and its pid

PostgreSQL refuses to run as root. For root, its files belong to another user, as whom it runs. That user need not be
able to enter the state folder: the server reaches its files by an open folder that it inherits. The server listens on a
socket only, in a folder that is closed to all users but the server's, and root.
"""

import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from urllib.parse import quote

import psycopg

from shared.errors import EmbeddedStoreError
from shared.retrieval.server_files import Programs, ServerUser, find_programs, run_as, server_user
from shared.state_dir import MAX_SOCKET_PATH, FolderLock, make_private_dir, read_note, write_note

#: How long a start may take: after a crash, the server first reads its log. In seconds.
START_TIMEOUT_S = 120.0
#: How long a stopping server may take before it is killed, in seconds.
STOP_GRACE_S = 15.0
#: The time between two looks at a server that starts or stops, in seconds.
POLL_INTERVAL_S = 0.05
#: The name of the socket in its folder.
_SOCKET = ".s.PGSQL.5432"
#: A longer log is begun anew at a start, in bytes.
_MAX_LOG = 16 * 1024 * 1024

_SETTINGS = {
    "listen_addresses": "",
    "unix_socket_permissions": "0700",
    # Doors have few connections each, and others come from `penstock` commands.
    "max_connections": "200",
    "shared_buffers": "128MB",
    # No replica and no backup reads the log of this server.
    "wal_level": "minimal",
    "max_wal_senders": "0",
    # Parallel queries need shared memory, and containers have little.
    "max_parallel_workers_per_gather": "0",
    "max_parallel_maintenance_workers": "0",
    "jit": "off",
    "timezone": "UTC",
    "log_timezone": "UTC",
    # Callers hear of errors, and clients cause them: each search that is canceled would add its statement to the log.
    "log_min_messages": "log",
    "log_min_error_statement": "panic",
    "log_checkpoints": "off",
}
#: For tests: a crash of the machine may lose everything.
NOT_DURABLE = {"fsync": "off", "synchronous_commit": "off", "full_page_writes": "off"}


class EmbeddedDatabase:
    """A running server that this process owns, because it started the server or took it over from a dead process."""

    name = "database"

    def __init__(self, state: Path, settings: dict[str, str]) -> None:
        self._state, self._folder, self._settings = state, state / "database", _SETTINGS | settings
        self._starter = os.getpid()
        self._process: subprocess.Popen[bytes] | None = None
        self._user: ServerUser | None = None
        self._copied: Path | None = None
        self.url = ""
        self.pid = 0
        #: Whether the server was already running and this process took it over.
        self.adopted = False

    @classmethod
    def start(
        cls,
        state: Path,
        *,
        settings: dict[str, str] | None = None,
        wait_s: float = START_TIMEOUT_S,
        should_abort: Callable[[], bool] = lambda: False,
    ) -> "EmbeddedDatabase":
        """Start the server of a state folder, or take over a running server whose owner has died.

        The caller holds the lock of the state folder. `settings` are further settings of the server. Raises
        EmbeddedStoreError if the server does not answer within `wait_s` seconds, or if `should_abort` returns true
        before.
        """
        database = cls(state, settings or {})
        database.revive(wait_s=wait_s, should_abort=should_abort)
        return database

    @property
    def user(self) -> str:
        """The name of the user as whom the server runs, if this process is root's, else ""."""
        return self._user.name if self._user else ""

    def alive(self) -> bool:
        if self._process is not None:
            return self._process.poll() is None
        lock = FolderLock.take(self._folder / "server.lock")
        if lock is not None:
            lock.close()
        return lock is None

    def revive(self, *, wait_s: float = START_TIMEOUT_S, should_abort: Callable[[], bool] = lambda: False) -> None:
        """Start the server, again if it has died. Raises EmbeddedStoreError."""
        try:
            make_private_dir(self._folder)
            self._user = server_user()
            self._bring_up(wait_s, should_abort)
        except (OSError, subprocess.SubprocessError) as error:
            raise EmbeddedStoreError(f"the database in {self._folder} cannot be started: {error}") from error

    def stop(self, grace_s: float = STOP_GRACE_S) -> None:
        """Stop the server. Does nothing in a forked child process."""
        if os.getpid() != self._starter:
            return
        # SIGINT ends connections and transactions, SIGQUIT leaves the work of a shutdown to the next start.
        for number, timeout_s in ((signal.SIGINT, grace_s), (signal.SIGQUIT, 5.0), (signal.SIGKILL, 5.0)):
            if not self.alive():
                break
            os.kill(self.pid, number)
            timeout_at_s = time.monotonic() + timeout_s
            while self.alive() and time.monotonic() < timeout_at_s:
                time.sleep(POLL_INTERVAL_S)
        (self._state / "database.json").unlink(missing_ok=True)
        socket_folder = Path(str(read_note(self._folder / "server.lock").get("socket", "")))
        for folder in (socket_folder, self._copied):
            if folder is not None and folder.is_absolute() and folder != self._folder:
                shutil.rmtree(folder, ignore_errors=True)

    def _bring_up(self, wait_s: float, should_abort: Callable[[], bool]) -> None:
        """Launch a server, or find the one that is running, and wait until it answers."""
        timeout_at_s, process = time.monotonic() + wait_s, None
        log = self._folder / "server.log"
        while True:
            lock = FolderLock.take(self._folder / "server.lock") if process is None else None
            if lock is not None:
                try:
                    process = self._launch(lock, log)
                finally:
                    lock.close()
            if self._answers():
                break
            if process is not None and process.poll() is not None:
                raise EmbeddedStoreError(
                    f"PostgreSQL ended at once with code {process.returncode}; {log} says: {_last_lines(log)}"
                )
            if should_abort() or time.monotonic() > timeout_at_s:
                if process is not None:
                    process.send_signal(signal.SIGQUIT)
                    process.wait()
                why = "stopped before it answered" if should_abort() else f"it did not answer within {wait_s:g} s"
                raise EmbeddedStoreError(f"the database in {self._folder} cannot be used: {why}")
            time.sleep(POLL_INTERVAL_S)
        self._process, self.adopted = process, process is None
        self.pid = int(read_note(self._folder / "server.lock").get("pid", 0))
        write_note(self._state / "database.json", {"url": self.url, "pid": self.pid, "started_by": os.getpid()})

    def _launch(self, lock: FolderLock, log: Path) -> subprocess.Popen[bytes]:
        """Start a server that inherits `lock`; holding the lock proves that no other server uses these files."""
        known = read_note(lock.path)
        if log.exists() and log.stat().st_size > _MAX_LOG:
            log.unlink()
        socket_folder = self._socket_folder(str(known.get("socket", "")))
        data = self._folder / "data"
        programs = self._programs(data)
        if not (data / "PG_VERSION").exists():
            self._create(programs, data, log)
        lock.write({"socket": str(socket_folder)})
        # A server that was killed leaves its pid in these files. After a restart of the machine or of a container,
        # another process may have that pid, and PostgreSQL would refuse to start as long as it lives.
        for left in (data / "postmaster.pid", socket_folder / f"{_SOCKET}.lock"):
            left.unlink(missing_ok=True)
        settings = self._settings | {"unix_socket_directories": str(socket_folder)}
        options = [word for name, value in settings.items() for word in ("-c", f"{name}={value}")]
        process = self._run_in(data, [str(programs.postgres), *options], log, lock.fd)
        lock.write({"socket": str(socket_folder), "pid": process.pid})
        return process

    def _programs(self, data: Path) -> Programs:
        version = data / "PG_VERSION"
        major = int(version.read_text(encoding="ascii").strip()) if version.exists() else None
        if self._copied is not None:
            shutil.rmtree(self._copied, ignore_errors=True)
        # In /tmp, which every user can enter; the folder belongs to this user.
        self._copied = Path(tempfile.mkdtemp(prefix="penstock-server-", dir="/tmp"))
        programs = find_programs(self._user, major, self._copied)
        if programs.copied is None:
            self._copied.rmdir()
            self._copied = None
        return programs

    def _create(self, programs: Programs, data: Path, log: Path) -> None:
        """Create the server's files, in a folder that gets its name when they are complete."""
        unfinished = data.with_name("data.new")
        for ctype in ("C.UTF-8", "C"):  # the first is missing on some systems; it knows more than ASCII's letters
            shutil.rmtree(unfinished, ignore_errors=True)
            unfinished.mkdir(mode=0o700)
            if self._user is not None:
                os.chown(unfinished, self._user.uid, self._user.gid)
            options = ["--username=penstock", "--auth=trust", "--encoding=UTF8", "--locale=C", f"--lc-ctype={ctype}"]
            options += ["--no-instructions"] + (["--no-sync"] if self._settings.get("fsync") == "off" else [])
            if self._run_in(unfinished, [str(programs.initdb), *options], log).wait() == 0:
                unfinished.rename(data)
                return
        raise EmbeddedStoreError(f"the database's files cannot be created; {log} says: {_last_lines(log)}")

    def _run_in(self, data: Path, command: list[str], log: Path, lock_fd: int | None = None) -> subprocess.Popen[bytes]:
        """Start a program of PostgreSQL as the server's user, with an option that names the folder of its files."""
        data_fd = os.open(data, os.O_RDONLY | os.O_DIRECTORY)
        try:
            # Another user may be unable to reach the folder by its path.
            place = str(data) if self._user is None else f"/proc/self/fd/{data_fd}"
            with log.open("ab") as output:
                return subprocess.Popen(
                    [*command, "-D", place],
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    cwd="/",
                    # No variable of libpq, and no secret of this process.
                    env={name: os.environ[name] for name in ("PATH", "LD_LIBRARY_PATH") if name in os.environ},
                    umask=0o077,
                    # Ctrl-C signals the terminal's whole process group, but the server must outlive its clients.
                    start_new_session=True,
                    pass_fds=[data_fd] if lock_fd is None else [data_fd, lock_fd],
                    **run_as(self._user),
                )
        finally:
            os.close(data_fd)

    def _socket_folder(self, known: str) -> Path:
        """Return a folder for the socket, which no other user may enter: the state folder's, or a new one in /tmp.

        That of the socket before is used again, if it is still as it was.
        """
        if self._user is None and len(os.fsencode(self._folder / _SOCKET)) <= MAX_SOCKET_PATH:
            return self._folder
        uid = os.getuid() if self._user is None else self._user.uid
        if known and Path(known) != self._folder and Path(known).is_dir() and not Path(known).is_symlink():
            status = Path(known).stat()
            if status.st_uid == uid and not status.st_mode & 0o077:
                return Path(known)
        folder = Path(tempfile.mkdtemp(prefix="penstock-", dir="/tmp"))
        if self._user is not None:
            os.chown(folder, self._user.uid, self._user.gid)
        return folder

    def _answers(self) -> bool:
        """Return whether a server answers at the folder's socket."""
        folder = str(read_note(self._folder / "server.lock").get("socket", ""))
        if not (Path(folder) / _SOCKET).is_socket():
            return False
        self.url = f"postgresql://penstock@/postgres?host={quote(folder, safe='')}"
        try:
            with psycopg.connect(self.url, connect_timeout=2) as connection:
                connection.execute("SELECT 1")
        except psycopg.Error:
            return False
        return True


def _last_lines(log: Path) -> str:
    with log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - 2000))
        lines = file.read().decode(errors="replace").splitlines()
    return " | ".join(line.strip() for line in lines[-3:]) or "nothing"
