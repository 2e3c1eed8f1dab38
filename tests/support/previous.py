"""The version before this one, taken out of the history, to run its processes beside those of this version."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.processes import ROOT, Process, Stage, wait_for

#: The commit whose version the tests run beside this one. It must be in the history of main, and must have a format
#: beside which this version works (shared/schema.py). shared/lua/README.md says when to change it.
COMMIT = "4e92bcc0fc51ae2cfc1d7055f85a93b0e5095025"


def _is_in_history() -> bool:
    command = ["git", "-C", ROOT, "cat-file", "-e", f"{COMMIT}^{{commit}}"]
    try:
        return subprocess.run(command, capture_output=True, check=False).returncode == 0
    except FileNotFoundError:
        return False  # no git here


#: If TESTS_NEED names history, as in continuous integration, the tests fail without the commit.
needs_history = pytest.mark.skipif(
    not _is_in_history() and "history" not in os.environ.get("TESTS_NEED", "").split(),
    reason=f"no commit {COMMIT[:10]} here, because the checkout has no complete history",
)


class Previous:
    """The files of the version before this one, in a folder."""

    def __init__(self, folder: Path) -> None:
        """Take the files out of the history. Raises AssertionError if the commit is not there."""
        self._folder = folder
        with subprocess.Popen(
            ["git", "-C", ROOT, "archive", COMMIT, "shared", "web", "workers"], stdout=subprocess.PIPE
        ) as archive:
            subprocess.run(["tar", "-x", "-C", folder], stdin=archive.stdout, check=True)
        assert archive.returncode == 0, COMMIT
        told = subprocess.run(
            [sys.executable, "-P", "-c", "import shared, web, workers; print(shared.__file__, web.__file__)"],
            env=os.environ | self.environ(),
            capture_output=True,
            text=True,
            check=True,
        )
        assert [Path(path).parents[1] for path in told.stdout.split()] == [folder, folder], told.stdout

    def environ(self) -> dict[str, str]:
        """Return the variables with which a Python process imports that version and not this one."""
        return {"PYTHONPATH": str(self._folder)}

    def worker(self, stage: Stage) -> Process:
        return stage.worker(**self.environ())

    def web(self, stage: Stage, port: int) -> Process:
        return stage.web(port, **self.environ())


def drained(process: Process) -> None:
    """Stop a process as an operator does, and wait until it has ended by itself."""
    process.terminate()
    wait_for(lambda: not process.alive, "the process to end", timeout_s=180)
    assert process.exit_code() == 0, process.log.read_text(errors="replace")[-5_000:]
