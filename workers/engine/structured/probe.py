"""Compiles a grammar in a helper process first, which ends if that takes too much CPU time or memory.

llguidance's limits do not bound the time to compile a grammar: twenty properties with `multipleOf`, each of
seven digits, took longer than 25 s of CPU time. A thread that compiles cannot be stopped, but a process can.
"""

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_MAIN = Path(__file__).with_name("probe_main.py")
#: The helper process gets only these variables of this process, and so none of its passwords.
_ENVIRONMENT = ("PATH", "PYTHONPATH", "PYTHONHOME", "LD_LIBRARY_PATH", "SYSTEMROOT")
#: How long a helper process may take to start or to answer, in wall time. Its CPU time is bounded more closely; this
#: time ends the wait if the machine is overloaded or the process is stopped.
_ANSWER_S = 30.0
#: How long a helper process may take to end, after it has closed its output.
_END_S = 5.0
#: The address space of a helper process. A grammar within the limits of llguidance takes less than 200 MB.
MAX_BYTES = 2 << 30


@dataclass(frozen=True)
class Verdict:
    """Whether a grammar can be compiled in this process: `error` is "" if so.

    `cpu_s` is the CPU time it took. If the helper process ended, this is the most that it may have taken.
    """

    error: str
    cpu_s: float


class Probes:
    """Helper processes that compile grammars. May be used from any thread; each thread uses a process of its own.

    Each grammar may take `cpu_ms` ms of CPU time, and each process `max_bytes` bytes of address space. `limits` are
    those of llguidance.
    """

    def __init__(self, cpu_ms: int, limits: dict[str, Any], *, max_bytes: int = MAX_BYTES) -> None:
        self._cpu_ms, self._limits, self._max_bytes = cpu_ms, limits, max_bytes
        self._lock = threading.Lock()
        self._idle: list[_Probe] = []
        self._closed = False

    def check(self, grammar: str) -> Verdict:
        """Compile the grammar in a helper process. This takes at most the allowed CPU time and memory.

        Raises RuntimeError if no helper process can be started.
        """
        probe = self._idle_probe() or _Probe(self._cpu_ms, self._limits, self._max_bytes)
        try:
            verdict = probe.check(grammar)
        except BaseException:
            probe.kill()
            raise
        if verdict is None:
            return Verdict(self._why_ended(probe.end()), self._cpu_ms / 1000 + probe.start_s)
        with self._lock:
            if not self._closed:
                self._idle.append(probe)
                return verdict
        probe.kill()
        return verdict

    def _why_ended(self, code: int | None) -> str:
        """Return why there is no answer. `code` is what the process ended with; None if it had not ended."""
        if code == -signal.SIGPROF:
            return f"it takes more than {self._cpu_ms} ms to compile"
        if code == -signal.SIGABRT:
            return f"it takes more than {self._max_bytes >> 20} MiB of memory to compile"
        if code is None:
            return f"it was not compiled within {_ANSWER_S:g} s"
        return f"the process that compiled it ended with {code}"

    def _idle_probe(self) -> "_Probe | None":
        """Return an idle helper process, or None. One that has died while it was idle is not returned."""
        with self._lock:
            while self._idle:
                probe = self._idle.pop()
                if probe.runs:
                    return probe
                probe.kill()
        return None

    def close(self) -> None:
        """End the helper processes."""
        with self._lock:
            idle, self._idle, self._closed = self._idle, [], True
        for probe in idle:
            probe.kill()


class _Probe:
    """One helper process."""

    def __init__(self, cpu_ms: int, limits: dict[str, Any], max_bytes: int) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-P", str(_MAIN), str(cpu_ms), json.dumps(limits), str(max_bytes)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={name: os.environ[name] for name in _ENVIRONMENT if name in os.environ},
            close_fds=True,
        )
        if self._process.stdin is not None:
            # A pipe holds 64 KiB. A write of more would wait for as long as the process is stopped.
            os.set_blocking(self._process.stdin.fileno(), False)
        self._buffer = b""
        #: Whether the process has closed its input or its output, because it ends.
        self._ends = False
        ready = self._read()
        if ready is None:
            self.kill()
            raise RuntimeError("the helper process that compiles grammars did not start")
        #: CPU time that the process took to start.
        self.start_s = ready[1]

    @property
    def runs(self) -> bool:
        """Whether the process has not ended."""
        return self._process.poll() is None

    def check(self, grammar: str) -> Verdict | None:
        """Return the verdict, or None if the process ended or did not answer in time."""
        answer = self._read() if self._write(json.dumps(grammar).encode() + b"\n") else None
        return None if answer is None else Verdict(*answer)

    def _write(self, data: bytes) -> bool:
        """Send the data to the process. Return False if the process ended or did not read all of it in time."""
        stream = self._process.stdin
        until_s = time.monotonic() + _ANSWER_S
        while stream is not None and data:
            if not select.select([], [stream], [], max(0.0, until_s - time.monotonic()))[1]:
                return False
            try:
                data = data[os.write(stream.fileno(), data) :]
            except BlockingIOError:
                continue
            except OSError:
                self._ends = True
                return False
        return True

    def _read(self) -> tuple[str, float] | None:
        """Return the next answer, or None if the process ended or did not answer in time."""
        stream = self._process.stdout
        until_s = time.monotonic() + _ANSWER_S
        while stream is not None and b"\n" not in self._buffer:
            if not select.select([stream], [], [], max(0.0, until_s - time.monotonic()))[0]:
                return None
            data = os.read(stream.fileno(), 65_536)
            if not data:
                self._ends = True
                return None
            self._buffer += data
        line, _, self._buffer = self._buffer.partition(b"\n")
        text, cpu_s = json.loads(line)
        return text, cpu_s

    def end(self) -> int | None:
        """Return what a process that did not answer has ended with: a status, or the number of a signal, negated.

        A process that still runs is killed; the return value is then None.
        """
        code = None
        with contextlib.suppress(subprocess.TimeoutExpired):
            code = self._process.wait(_END_S if self._ends else 0)
        self.kill()
        return code

    def kill(self) -> None:
        """End the process."""
        self._process.kill()
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                with contextlib.suppress(OSError):
                    stream.close()
        self._process.wait()
