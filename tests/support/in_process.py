"""Runs `penstock` commands inside the test's own process, which takes a tenth of the time of a process of their own."""

import io
import subprocess
import sys
import threading
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import TextIO

import pytest

from shared.cli.command_line import run


class _Output(io.StringIO):
    """Holds what a command writes. The output of threads of earlier tests goes to its former place meanwhile."""

    def __init__(self, before: TextIO) -> None:
        super().__init__()
        self._before = before
        self._others = set(threading.enumerate()) - {threading.current_thread()}

    def write(self, text: str) -> int:
        return self._before.write(text) if threading.current_thread() in self._others else super().write(text)


class InProcess:
    """`penstock` with the settings of the test. Output goes to no terminal."""

    def __init__(self, patch: pytest.MonkeyPatch, state_dir: Path, redis_url: str) -> None:
        patch.setenv("PENSTOCK_STATE_DIR", str(state_dir))
        patch.setenv("REDIS_URL", redis_url)

    def __call__(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run a command to its end."""
        stdout, stderr = _Output(sys.stdout), _Output(sys.stderr)
        with redirect_stdout(stdout), redirect_stderr(stderr):
            try:
                code = run(arguments)
            except SystemExit as end:
                code = int(str(end.code or 0))
        return subprocess.CompletedProcess(list(arguments), code, stdout.getvalue(), stderr.getvalue())
