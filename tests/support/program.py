"""Runs the `penstock` program as a process, with given arguments and environment, and returns its output."""

import os
import pty
import select
import subprocess
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from tests.support.preloaded import PENSTOCK, Forked, fork, run

COMMAND = PENSTOCK
ROOT = Path(__file__).parents[2]
#: How long a program on a terminal may write nothing. It is long, because a stack starts slowly on a busy machine.
_MAX_SILENCE_S = 100.0


class Running:
    """A command that was started in a session of its own, with the pipes from its stdout and stderr."""

    def __init__(self, command: Sequence[str], environ: Mapping[str, str], folder: Path | None = None) -> None:
        (out, out_end), (err, err_end) = os.pipe(), os.pipe()
        with (
            Path(os.devnull).open("rb") as stdin,
            os.fdopen(out_end, "wb") as stdout,
            os.fdopen(err_end, "wb") as stderr,
        ):
            self.process: Forked | subprocess.Popen[bytes] = fork(
                command, environ, stdin, stdout, stderr, folder=folder, new_session=True
            ) or subprocess.Popen(
                command, env=environ, cwd=folder, stdin=stdin, stdout=stdout, stderr=stderr, start_new_session=True
            )
        self.pid = self.process.pid
        self.stdout, self.stderr = os.fdopen(out), os.fdopen(err)
        self._rest = {self.stdout: "", self.stderr: ""}
        self._readers: list[threading.Thread] = []

    @property
    def returncode(self) -> int | None:
        return self.process.poll()

    def poll(self) -> int | None:
        return self.process.poll()

    def wait(self, timeout: float = 60) -> int:
        return self.process.wait(timeout)

    def send_signal(self, number: int) -> None:
        self.process.send_signal(number)

    def kill(self) -> None:
        self.process.kill()

    def communicate(self, timeout: float = 60) -> tuple[str, str]:
        """Wait for the end, and return the rest of stdout and of stderr. Raises TimeoutExpired."""
        if not self._readers:
            self._readers = [threading.Thread(target=self._read, args=(pipe,)) for pipe in self._rest]
            for reader in self._readers:
                reader.start()
        self.process.wait(timeout)
        for reader in self._readers:
            reader.join()
        return self._rest[self.stdout], self._rest[self.stderr]

    def _read(self, pipe: IO[str]) -> None:
        with pipe:
            self._rest[pipe] = pipe.read()


@dataclass(frozen=True)
class Program:
    """`penstock` with an environment from which the tester's own settings are removed."""

    environ: Mapping[str, str]

    def command(self, *arguments: str) -> list[str]:
        """Return the whole command line."""
        return [*COMMAND, *arguments]

    def with_env(self, **more: str) -> "Program":
        """Return the same program with more settings."""
        return Program({**self.environ, **more})

    def __call__(
        self, *arguments: str, stdin: str | None = None, timeout_s: float = 60, **into: IO[bytes]
    ) -> subprocess.CompletedProcess[str]:
        """Run the program to its end. `into` may have other files for `stdout` and `stderr` than those returned."""
        return run(self.command(*arguments), self.environ, stdin, timeout_s, **into) or subprocess.run(
            self.command(*arguments),
            env=self.environ,
            input=stdin,
            stdin=subprocess.DEVNULL if stdin is None else None,
            text=True,
            timeout=timeout_s,
            check=False,
            **{"stdout": subprocess.PIPE, "stderr": subprocess.PIPE} | into,
        )

    def on_a_terminal(self, *arguments: str, columns: int = 100) -> str:
        """Run the program on a terminal with `columns` columns; return what a person would see on it."""
        terminal, program_end = pty.openpty()
        environ = {**self.environ, "COLUMNS": str(columns), "TERM": "xterm-256color"}
        command = self.command(*arguments)
        with os.fdopen(program_end, "r+b", buffering=0) as end:
            process = fork(command, environ, end, end, end) or subprocess.Popen(
                command, env=environ, stdin=end, stdout=end, stderr=end
            )
        seen = b""
        while select.select([terminal], [], [], _MAX_SILENCE_S)[0]:
            try:
                part = os.read(terminal, 65536)
            except OSError:  # Linux raises EIO once no process has the other end open
                break
            if not part:
                break
            seen += part
        os.close(terminal)
        process.wait(30)
        return seen.decode().replace("\r\n", "\n")

    def start(self, *arguments: str) -> Running:
        """Start the program in its own process group; the caller must end it."""
        return Running(self.command(*arguments), self.environ)


def program(state_dir: Path, **settings: str) -> Program:
    """Return a program with this state folder; REDIS_URL and PENSTOCK_ settings are only those in `settings`."""
    ours = {
        name: value for name, value in os.environ.items() if name != "REDIS_URL" and not name.startswith("PENSTOCK_")
    }
    return Program({**ours, "PENSTOCK_STATE_DIR": str(state_dir), **settings})
