"""The `penstock` program as a process: its arguments, its environment, what it printed."""

import os
import pty
import select
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

#: The installed script where there is one beside this Python, else the module it calls.
_SCRIPT = Path(sys.executable).with_name("penstock")
COMMAND = [str(_SCRIPT)] if _SCRIPT.exists() else [sys.executable, "-m", "shared.cli"]
ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Program:
    """`penstock` with an environment in which no setting of the person who tests is left."""

    environ: Mapping[str, str]

    def command(self, *arguments: str) -> list[str]:
        """The whole command line."""
        return [*COMMAND, *arguments]

    def with_env(self, **more: str) -> "Program":
        """The same with more settings."""
        return Program({**self.environ, **more})

    def __call__(
        self, *arguments: str, stdin: str | None = None, timeout_s: float = 60
    ) -> subprocess.CompletedProcess[str]:
        """Run it to its end."""
        return subprocess.run(
            self.command(*arguments),
            env=self.environ,
            input=stdin,
            stdin=subprocess.DEVNULL if stdin is None else None,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )

    def on_a_terminal(self, *arguments: str) -> str:
        """What a person would see: stdout and stderr are one terminal of 100 columns."""
        ours, theirs = pty.openpty()
        environ = {**self.environ, "COLUMNS": "100", "TERM": "xterm-256color"}
        process = subprocess.Popen(self.command(*arguments), env=environ, stdin=theirs, stdout=theirs, stderr=theirs)
        os.close(theirs)
        seen = b""
        while select.select([ours], [], [], 30)[0]:
            try:
                part = os.read(ours, 65536)
            except OSError:  # Linux says EIO when the last holder of the other end is gone
                break
            if not part:
                break
            seen += part
        os.close(ours)
        process.wait(30)
        return seen.decode().replace("\r\n", "\n")

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        """Start it in a process group of its own; whoever starts it ends it."""
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
    """A program whose state folder is `state_dir`; REDIS_URL and PENSTOCK_ names only as given."""
    ours = {
        name: value for name, value in os.environ.items() if name != "REDIS_URL" and not name.startswith("PENSTOCK_")
    }
    return Program({**ours, "PENSTOCK_STATE_DIR": str(state_dir), **settings})
