"""The bar of a loading model: on a terminal, of a worker that is alone there, and nowhere else."""

import os
import pty
import subprocess
import sys

import pytest

from tests.support.program import ROOT

LOADS = """
from workers.model.progress_bar import loading_bar
with loading_bar("tiny", alone={alone}) as tell:
    if tell:
        tell(0.5)
print("told" if tell else "silent", flush=True)
"""


def on_a_terminal(program: str) -> tuple[str, str]:
    """What it prints, and what a person sees meanwhile."""
    ours, theirs = pty.openpty()
    environ = os.environ | {"TERM": "xterm-256color", "COLUMNS": "80"}
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, cwd=ROOT, env=environ, stderr=theirs, stdout=subprocess.PIPE, check=True, timeout=60)
    os.close(theirs)
    seen = b""
    try:
        while part := os.read(ours, 65536):
            seen += part
    except OSError:  # Linux says EIO when the other end is closed
        pass
    os.close(ours)
    return done.stdout.decode().strip(), seen.decode(errors="replace")


def test_a_worker_alone_on_a_terminal_shows_a_bar() -> None:
    said, seen = on_a_terminal(LOADS.format(alone=True))
    assert said == "told"
    assert "loading tiny" in seen
    assert "50 %" in seen


def test_workers_that_share_a_terminal_draw_nothing() -> None:
    assert on_a_terminal(LOADS.format(alone=False)) == ("silent", "")


@pytest.mark.parametrize("alone", [True, False])
def test_without_a_terminal_nothing_is_drawn(alone: bool) -> None:
    command = [sys.executable, "-c", LOADS.format(alone=alone)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True, timeout=60)
    assert (done.stdout.strip(), done.stderr) == ("silent", "")
