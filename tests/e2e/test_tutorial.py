"""docs/tutorial.md works as printed: its commands run in order in two shells, and print what it shows."""

import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.ports import free_port
from tests.support.processes import ROOT, wait_for
from tests.support.program import program

pytestmark = pytest.mark.minutes

PAGE = (ROOT / "docs" / "tutorial.md").read_text(encoding="utf-8")
FIRST_SHELL, *SECOND_SHELL = re.findall(r"^```console\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
#: Written before the output of each command, so that it can be told from the output of the others.
MARK = "-- command "


def steps(block: str) -> list[tuple[str, list[str]]]:
    """Return each command of a block with the lines that the page shows as its output."""
    found: list[tuple[str, list[str]]] = []
    for line in block.splitlines():
        if line.startswith("$ "):
            found.append((line.removeprefix("$ "), []))
        else:
            found[-1][1].append(line)
    return found


def as_pattern(line: str) -> str:
    """Return a pattern for a printed line: numbers may differ, and … stands for any text."""
    parts = [re.sub(r"\d+(\\\.\d+)?", r"[0-9.]+", re.escape(part)) for part in line.split("…")]
    return ".*".join(parts)


def environ(folder: Path, port: int) -> dict[str, str]:
    """Return the environment of both shells. The page's own lines set the state folder and PENSTOCK_AUTH."""
    url = {"PENSTOCK_URL": f"http://127.0.0.1:{port}", "PENSTOCK_LISTEN": f"127.0.0.1:{port}"}
    plain = dict(program(folder, **url).environ)
    del plain["PENSTOCK_STATE_DIR"]
    return plain | {"PYTHONPATH": str(ROOT), "NO_COLOR": "1"}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The folder in which the reader works: like the repository's, but without a developer's settings and state."""
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    binaries = tmp_path / ".venv" / "bin"
    binaries.mkdir(parents=True)
    (binaries / "activate").write_text(f"export PATH={Path(sys.executable).parent}:$PATH\n")
    return tmp_path


@contextmanager
def first_shell(folder: Path, port: int) -> Iterator[None]:
    """Run the page's first block, which ends with a command that serves until Ctrl-C."""
    *before, (serves, _) = steps(FIRST_SHELL)
    script = "\n".join(["set -e", *(command for command, _ in before), f"exec {serves}"])
    log = folder / "first-shell"
    with log.open("wb") as output:
        process = subprocess.Popen(
            ["bash", "-c", script],
            cwd=folder,
            env=environ(folder, port),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
        )
    served = f"penstock-demo is served at http://127.0.0.1:{port}"
    try:
        wait_for(lambda: served in log.read_text() or process.poll() is not None, "the stack to serve", timeout_s=180)
        assert process.poll() is None, log.read_text()
        yield
        process.send_signal(signal.SIGINT)
        assert process.wait(120) == 0, log.read_text()
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGINT)
            process.send_signal(signal.SIGTERM)
            process.wait(60)


@pytest.mark.timeout(1800)
def test_the_commands_of_the_tutorial_work_as_printed(folder: Path) -> None:
    port = free_port()
    wanted = [step for block in SECOND_SHELL for step in steps(block)]
    assert len(wanted) > 30
    lines = ["set -e", "exec 2>&1"]
    for number, (command, _) in enumerate(wanted):
        lines += [f"echo '{MARK}{number}'", command.replace("localhost:8000", f"localhost:{port}")]
    with first_shell(folder, port):
        done = subprocess.run(
            ["bash", "-c", "\n".join(lines)],
            cwd=folder,
            env=environ(folder, port),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=1500,
            check=False,
        )
    print(done.stdout)
    outputs = re.split(rf"^{MARK}\d+\n", done.stdout, flags=re.MULTILINE)[1:]
    assert done.returncode == 0, f"`{wanted[len(outputs) - 1][0]}` failed"
    for (command, shown), output in zip(wanted, outputs, strict=True):
        for line in shown:
            assert re.search(f"^{as_pattern(line)}$", output, re.MULTILINE), f"`{command}` printed no {line!r}"
    assert (folder / "usage.csv").read_text().count("\n") > 3


def test_nothing_of_the_page_is_outside_of_the_two_shells() -> None:
    assert len(re.findall(r"^```", PAGE, re.MULTILINE)) == 2 * (1 + len(SECOND_SHELL))


def test_what_the_page_makes_cannot_be_committed_by_mistake() -> None:
    (folder,) = re.findall(r"PENSTOCK_STATE_DIR=\$PWD/(\w+) ", FIRST_SHELL)
    (report,) = re.findall(r" > (\S+\.csv)$", PAGE, re.MULTILINE)
    assert {f"/{folder}/", f"/{report}"} <= set((ROOT / ".gitignore").read_text().splitlines())
