"""Tests of the loading bar: it is drawn only on a terminal, and only by a worker that is alone there."""

import os
import pty
import subprocess
import sys

import pytest

from tests.support.program import ROOT

PROGRAM = """
from workers.model.progress_bar import loading_bar
with loading_bar("tiny", alone={alone}) as report_progress:
    if report_progress:
        report_progress(0.5)
print("bar" if report_progress else "no bar", flush=True)
"""


def run_on_a_terminal(program: str) -> tuple[str, str]:
    """Run the program with a terminal as its stderr. Return its stdout and what the terminal received."""
    terminal_fd, program_fd = pty.openpty()
    environ = os.environ | {"TERM": "xterm-256color", "COLUMNS": "80"}
    command = [sys.executable, "-c", program]
    completed = subprocess.run(
        command, cwd=ROOT, env=environ, stderr=program_fd, stdout=subprocess.PIPE, check=True, timeout=60
    )
    os.close(program_fd)
    received = b""
    try:
        while part := os.read(terminal_fd, 65536):
            received += part
    except OSError:  # Linux raises EIO once the other end is closed
        pass
    os.close(terminal_fd)
    return completed.stdout.decode().strip(), received.decode(errors="replace")


def test_a_worker_alone_on_a_terminal_shows_a_bar() -> None:
    output, screen = run_on_a_terminal(PROGRAM.format(alone=True))
    assert output == "bar"
    assert "loading tiny" in screen
    assert "50 %" in screen


def test_workers_that_share_a_terminal_draw_nothing() -> None:
    assert run_on_a_terminal(PROGRAM.format(alone=False)) == ("no bar", "")


@pytest.mark.parametrize("alone", [True, False])
def test_without_a_terminal_nothing_is_drawn(alone: bool) -> None:
    command = [sys.executable, "-c", PROGRAM.format(alone=alone)]
    completed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True, timeout=60)
    assert (completed.stdout.strip(), completed.stderr) == ("no bar", "")
