"""Runs the `penstock` program as a process, with given arguments and environment, and returns its output."""

import os
import pty
import select
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.support.preloaded import PENSTOCK, run

COMMAND = PENSTOCK
ROOT = Path(__file__).parents[2]
#: How long a program on a terminal may write nothing. It is long, because a stack starts slowly on a busy machine.
_MAX_SILENCE_S = 100.0


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
        self, *arguments: str, stdin: str | None = None, timeout_s: float = 60
    ) -> subprocess.CompletedProcess[str]:
        """Run the program to its end."""
        return run(self.command(*arguments), self.environ, stdin, timeout_s) or subprocess.run(
            self.command(*arguments),
            env=self.environ,
            input=stdin,
            stdin=subprocess.DEVNULL if stdin is None else None,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )

    def on_a_terminal(self, *arguments: str, columns: int = 100) -> str:
        """Run the program on a terminal with `columns` columns; return what a person would see on it."""
        terminal, program_end = pty.openpty()
        environ = {**self.environ, "COLUMNS": str(columns), "TERM": "xterm-256color"}
        process = subprocess.Popen(
            self.command(*arguments), env=environ, stdin=program_end, stdout=program_end, stderr=program_end
        )
        os.close(program_end)
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

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        """Start the program in its own process group; the caller must end it."""
        return subprocess.Popen(
            self.command(*arguments),
            env=self.environ,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )


def program(state_dir: Path, **settings: str) -> Program:
    """Return a program with this state folder; REDIS_URL and PENSTOCK_ settings are only those in `settings`."""
    ours = {
        name: value for name, value in os.environ.items() if name != "REDIS_URL" and not name.startswith("PENSTOCK_")
    }
    return Program({**ours, "PENSTOCK_STATE_DIR": str(state_dir), **settings})
