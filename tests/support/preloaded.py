"""Starts doors, gates, workers and `penstock` by forking a process that has already loaded their modules and scripts.

Most of the CPU time of a new process goes into loading modules. The forked process does all the rest by itself: it has
its own environment, folder, input and output, and runs its module or script from the beginning. The processes that
`penstock up` starts itself are not forked, so each door and worker of its tests starts from nothing.
"""

import atexit
import gc
import importlib
import importlib.util
import io
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, Any

#: The installed script if there is one beside this Python, else the module that it calls.
_SCRIPT = Path(sys.executable).with_name("penstock")
PENSTOCK = [str(_SCRIPT)] if _SCRIPT.exists() else [sys.executable, "-m", "shared.cli"]
#: The modules that can be run, each with the kind of the process that is forked.
_KINDS = {"web": "door", "web.gate": "door", "workers": "worker", "shared.cli": "penstock"}
#: The modules that each kind loads, in this order. gunicorn's own come before gevent's patches.
_LOADED = {
    "door": (
        *("gunicorn.app.wsgiapp", "gunicorn.arbiter", "web.server.gevent_patches"),
        *("web.boot", "web.gate.health", "web.gate.server", "web.http.metric_files", "web.server.worker"),
    ),
    "worker": (
        *("workers.__main__", "workers.engine.sim", "workers.upstream.factory"),
        *("workers.engine.llama.backend", "workers.engine.llama.calibration"),
    ),
    "penstock": (
        *("shared.cli.command_line", "shared.cli.client", "shared.cli.batch_client", "shared.cli.progress"),
        *("shared.accounts.admin_keys", "shared.accounts.routes", "shared.accounts.usage", "shared.accounts.workers"),
        *("shared.audit.repair", "shared.store.preflight", "shared.version", "pydantic.type_adapter"),
        *("rich.live", "rich.table", "shared.cli.stack.stack"),
    ),
}
#: The modules of a package that are loaded only if another package is installed. Its libraries start no thread before
#: they are first used.
_OPTIONAL = {"workers.engine.llama": "llama_cpp"}
#: The variables that nothing reads while it is loaded, by their beginnings.
_READ_LATE = ("PENSTOCK_", "COVERAGE_", "PYTEST_", "REDIS_URL", "PATH", "TMPDIR", "TERM", "COLUMNS", "NO_COLOR")
_ROOT = Path(__file__).parents[2]
_MAX_REQUEST = 1 << 17
_CHECK_S = 0.005


class Forked:
    """A forked process, with those methods of Popen that tests use."""

    def __init__(self, pid: int, exit_code: socket.socket) -> None:
        self.pid = pid
        self._socket = exit_code
        self._code: int | None = None
        self._lock = threading.Lock()

    def poll(self) -> int | None:
        """Return the exit code, or None while the process lives."""
        with self._lock:
            if self._code is None and select.select([self._socket], [], [], 0)[0]:
                with self._socket:
                    self._code = int(self._socket.recv(16))
            return self._code

    def wait(self, timeout: float = float("inf")) -> int:
        """Wait for the exit code. Raises TimeoutExpired."""
        until = time.monotonic() + timeout
        while (code := self.poll()) is None:
            if time.monotonic() > until:
                raise subprocess.TimeoutExpired(f"process {self.pid}", timeout)
            time.sleep(_CHECK_S)
        return code

    def is_stopped(self) -> bool:
        """Return whether each thread has stopped, or the process has ended."""
        with suppress(FileNotFoundError, ProcessLookupError):
            tasks = Path(f"/proc/{self.pid}/task").glob("*/stat")
            return all(task.read_text().rpartition(")")[2].split()[0] in "TZX" for task in tasks)
        return self.poll() is not None

    def send_signal(self, number: int) -> None:
        """Send a signal, unless the process has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def fork(
    arguments: Sequence[str],
    environ: Mapping[str, str],
    stdin: IO[bytes],
    stdout: IO[bytes],
    stderr: IO[bytes],
    *,
    folder: Path | None = None,
    new_session: bool = False,
) -> Forked | None:
    """Start a command by a fork, or return None if only an ordinary start has the same effect.

    It runs in `folder`, or in this process' own.
    """
    words = [word for word in arguments if word != "-P"]
    if words[:1] == PENSTOCK:
        kind = "penstock"
    elif words[:2] == [sys.executable, "-m"] and words[2] in _KINDS:
        words = words[2:]
        kind = _KINDS[words[0]]
    else:
        return None
    if not hasattr(os, "pidfd_open") or _read_early(environ) != _loader(kind).environ:
        return None
    request = {"words": words, "environ": dict(environ), "folder": str(folder or Path.cwd()), "session": new_session}
    return _loader(kind).fork(request, [stdin, stdout, stderr])


def run(
    arguments: Sequence[str], environ: Mapping[str, str], stdin: str | None, timeout_s: float, **into: IO[bytes]
) -> subprocess.CompletedProcess[str] | None:
    """Run a command by a fork to its end, or return None if only an ordinary start has the same effect.

    `into` may have files for `stdout` and `stderr`, whose text is not returned.
    """
    with TemporaryFile() as given, TemporaryFile() as stdout, TemporaryFile() as stderr:
        given.write((stdin or "").encode())
        given.seek(0)
        process = fork(arguments, environ, given, into.get("stdout", stdout), into.get("stderr", stderr))
        if process is None:
            return None
        try:
            code = process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            os.kill(process.pid, signal.SIGKILL)
            process.wait()
            raise
        return subprocess.CompletedProcess(arguments, code, _written(stdout), _written(stderr))


def _written(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read().decode().replace("\r\n", "\n")


def _read_early(environ: Mapping[str, str]) -> dict[str, str]:
    return {name: text for name, text in environ.items() if not name.startswith(_READ_LATE)}


class _Loader:
    """A process that loads the modules of one kind and is then forked at each request."""

    def __init__(self, kind: str) -> None:
        self._lock = threading.Lock()
        self.environ = _read_early(os.environ)
        self._requests, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        command = [sys.executable, "-m", "tests.support.preloaded", kind, str(theirs.fileno())]
        with theirs:
            self._process = subprocess.Popen(
                command,
                cwd=_ROOT,
                env=self.environ,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
            )
        atexit.register(self._end)

    def fork(self, request: dict[str, object], streams: Sequence[IO[bytes]]) -> Forked:
        exit_code, theirs = socket.socketpair()
        with theirs, self._lock:
            descriptors = [*(stream.fileno() for stream in streams), theirs.fileno()]
            socket.send_fds(self._requests, [json.dumps(request).encode()], descriptors)
            return Forked(int(self._requests.recv(16)), exit_code)

    def _end(self) -> None:
        self._requests.close()
        self._process.wait()


@cache
def _loader(kind: str) -> _Loader:
    return _Loader(kind)


# The rest of this file runs in the process that is forked. It uses nothing that gevent replaces.

_fork, _new_poll, _new_socket, _receive, _wait = os.fork, select.poll, socket.socket, socket.recv_fds, os.waitpid


def _load(kind: str) -> None:
    for name in _LOADED[kind]:
        package = _OPTIONAL.get(name.rpartition(".")[0])
        if package and importlib.util.find_spec(package) is None:
            continue
        module = importlib.import_module(name)
        if name == "web.server.gevent_patches":
            module.apply()
    if kind != "penstock":
        importlib.import_module("shared.store.scripts").preload()
    # A module that runs as __main__ must not be there by its own name too.
    sys.modules.pop("workers.__main__", None)
    # A garbage collection in a forked process would otherwise write to all pages, which would then be copied.
    gc.collect()
    gc.freeze()


def _serve(requests: socket.socket) -> list[str]:
    """Fork at each request, until there can be no more; return only in forked processes, with the words to run."""
    poll, children = _new_poll(), dict[int, tuple[int, socket.socket]]()
    poll.register(requests, select.POLLIN)
    while True:
        for ready, _ in poll.poll():
            if ready in children:
                pid, exit_code = children.pop(ready)
                poll.unregister(ready)
                os.close(ready)
                with exit_code, suppress(BrokenPipeError):
                    exit_code.send(str(os.waitstatus_to_exitcode(_wait(pid, 0)[1])).encode())
                continue
            request, descriptors, *_ = _receive(requests, _MAX_REQUEST, 4)
            if not request:
                os._exit(0)
            exit_code = _new_socket(fileno=descriptors.pop())
            pid = _fork()
            if pid == 0:
                for number, (_, other) in children.items():
                    os.close(number)
                    other.close()
                requests.close()
                exit_code.close()
                return _become(json.loads(request), descriptors)
            for number in descriptors:
                os.close(number)
            children[number := os.pidfd_open(pid)] = pid, exit_code
            poll.register(number, select.POLLIN)
            requests.send(str(pid).encode())


def _become(request: dict[str, object], streams: list[int]) -> list[str]:
    """Take the environment, folder, input and output of the new process; return the words of its command."""
    if request["session"]:
        os.setsid()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    environ, words = request["environ"], request["words"]
    assert isinstance(environ, dict)
    assert isinstance(words, list)
    os.environ.clear()
    os.environ.update(environ)
    os.chdir(str(request["folder"]))
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        _reopen(name, mode)
    return words


def _reopen(name: str, mode: str) -> None:
    """Replace a standard stream by one of the same form: the old one knows whether its earlier file could seek."""
    old = getattr(sys, name)
    # PYTHONUNBUFFERED leaves out the buffer, which a signal handler that interrupts a write could not use.
    file: Any = io.FileIO(old.fileno(), mode, closefd=False)
    if isinstance(old.buffer, io.BufferedIOBase):
        file = io.BufferedReader(file) if mode == "r" else io.BufferedWriter(file)
    new = io.TextIOWrapper(
        file,
        encoding=old.encoding,
        errors=old.errors,
        line_buffering=old.line_buffering or file.isatty(),
        write_through=old.write_through,
    )
    setattr(sys, name, new)
    setattr(sys, f"__{name}__", new)


if __name__ == "__main__":
    # Python put the repository there, where this module is. A process that is started otherwise has no such entry.
    del sys.path[0]
    # Ctrl-C goes to the tests, which end this process.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    channel = socket.socket(fileno=int(sys.argv[2]))
    _load(sys.argv[1])
    sys.argv = _serve(channel)
    if sys.argv[0] in _KINDS:
        runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
    else:
        runpy.run_path(sys.argv[0], run_name="__main__")
