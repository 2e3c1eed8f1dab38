"""Helper processes, which do work that nothing could interrupt in this process: the kernel ends them at their limits.

A helper is a script that bounds its own CPU time and memory. It writes a JSON line when it is ready, and then one for
each line that it reads.
"""

import contextlib
import json
import os
import select
import subprocess
import sys
import threading
import time
import weakref
from dataclasses import dataclass
from pathlib import Path
from typing import Any

#: A helper process gets only these variables of this process, and so none of its passwords.
_ENVIRONMENT = ("PATH", "PYTHONPATH", "PYTHONHOME", "LD_LIBRARY_PATH", "SYSTEMROOT", "TZ")
#: How long a helper process may take to start or to answer, in wall time. Its CPU time is bounded more closely; this
#: time ends the wait if the machine is overloaded or the process is stopped.
ANSWER_S = 30.0
#: How long a helper process may take to end, after it has closed its output.
_END_S = 5.0


@dataclass(frozen=True)
class Ended:
    """A helper process ended or was killed, and did not answer.

    `code` is the process's status, or the number of a signal, negated; None if it did not answer in time. `start_s` is
    the CPU time that it took to start.
    """

    code: int | None
    start_s: float


class HelperMissing(RuntimeError):
    """No helper process can be started. This is a fault of the worker and not of a request."""


class Helpers:
    """Helper processes that run the same script. May be used from any thread; each thread uses a process of its own.

    `first` is a line that each process reads first and does not answer. The processes also end with this object.
    """

    def __init__(self, main: Path, arguments: list[str], *, first: bytes = b"") -> None:
        self._main, self._arguments, self._first = main, arguments, first
        self._lock = threading.Lock()
        self._idle: list[_Helper] = []
        self._closed = False
        weakref.finalize(self, _kill_all, self._idle)

    def ask(self, line: bytes) -> Any:
        """Return the answer to a line of JSON, or Ended. Raises HelperMissing."""
        helper = self._idle_helper()
        if helper is None:
            helper, line = _Helper(self._main, self._arguments), self._first + line
        try:
            answer = helper.ask(line)
        except BaseException:
            helper.kill()
            raise
        if answer is None:
            return Ended(helper.end(), helper.start_s)
        with self._lock:
            if not self._closed:
                self._idle.append(helper)
                return answer
        helper.kill()
        return answer

    def _idle_helper(self) -> "_Helper | None":
        """Return an idle helper process, or None. One that has died while it was idle is not returned."""
        with self._lock:
            while self._idle:
                helper = self._idle.pop()
                if helper.runs:
                    return helper
                helper.kill()
        return None

    def close(self) -> None:
        with self._lock:
            self._closed = True
            _kill_all(self._idle)


class _Helper:
    """One helper process."""

    def __init__(self, main: Path, arguments: list[str]) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-P", str(main), *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={name: os.environ[name] for name in _ENVIRONMENT if name in os.environ},
            close_fds=True,
        )
        if self._process.stdin is not None:
            # A pipe holds 64 KiB. A write of more would wait for as long as the process is stopped.
            os.set_blocking(self._process.stdin.fileno(), False)
        #: Whether the process has closed its input or its output, because it ends.
        self._ends = False
        ready = self._read()
        if ready is None:
            self.kill()
            raise HelperMissing(f"the helper process {main.name} did not start")
        #: CPU time that the process took to start.
        self.start_s = float(ready)

    @property
    def runs(self) -> bool:
        return self._process.poll() is None

    def ask(self, line: bytes) -> Any:
        """Return the answer, or None if the process ended or did not answer in time."""
        return self._read() if self._write(line) else None

    def _write(self, data: bytes) -> bool:
        """Send the data to the process. Return False if the process ended or did not read all of it in time."""
        stream = self._process.stdin
        left = memoryview(data)
        until_s = time.monotonic() + ANSWER_S
        while stream is not None and left:
            if not select.select([], [stream], [], max(0.0, until_s - time.monotonic()))[1]:
                return False
            try:
                left = left[os.write(stream.fileno(), left) :]
            except BlockingIOError:
                continue
            except OSError:
                self._ends = True
                return False
        return True

    def _read(self) -> Any:
        """Return the next answer, or None if the process ended or did not answer in time."""
        stream = self._process.stdout
        parts: list[bytes] = []
        until_s = time.monotonic() + ANSWER_S
        while stream is not None and not (parts and parts[-1].endswith(b"\n")):
            if not select.select([stream], [], [], max(0.0, until_s - time.monotonic()))[0]:
                return None
            parts.append(os.read(stream.fileno(), 65_536))
            if not parts[-1]:
                self._ends = True
                return None
        return json.loads(b"".join(parts))

    def end(self) -> int | None:
        """Return the code with which a process that did not answer has ended.

        A process that still runs is killed; the return value is then None.
        """
        code = None
        with contextlib.suppress(subprocess.TimeoutExpired):
            code = self._process.wait(_END_S if self._ends else 0)
        self.kill()
        return code

    def kill(self) -> None:
        self._process.kill()
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                with contextlib.suppress(OSError):
                    stream.close()
        self._process.wait()


def _kill_all(helpers: list[_Helper]) -> None:
    while helpers:
        helpers.pop().kill()
