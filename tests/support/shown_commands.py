"""Runs the commands that a page shows, in two shells, and compares their output with what the page shows."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.support.processes import ROOT, wait_for
from tests.support.program import program

#: Written before the output of each command, so that it can be told from the output of the others.
MARK = "-- command "


def blocks(page: str) -> list[str]:
    """Return the blocks of a page that show commands."""
    found: list[str] = re.findall(r"^```console\n(.*?)^```", page, re.DOTALL | re.MULTILINE)
    return found


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


def prepare(folder: Path, *linked: str) -> Path:
    """Make a folder in which a reader works: with these of the repository, and no developer's settings and state."""
    for name in linked:
        (folder / name).symlink_to(ROOT / name)
    binaries = folder / ".venv" / "bin"
    binaries.mkdir(parents=True)
    (binaries / "activate").write_text(f"export PATH={Path(sys.executable).parent}:$PATH\n")
    return folder


def environ(folder: Path, port: int) -> dict[str, str]:
    """Return the environment of both shells, without a state folder. Its PATH leads to this `penstock`."""
    url = {"PENSTOCK_URL": f"http://127.0.0.1:{port}", "PENSTOCK_LISTEN": f"127.0.0.1:{port}"}
    plain = dict(program(folder, **url).environ)
    del plain["PENSTOCK_STATE_DIR"]
    path = f"{Path(sys.executable).parent}{os.pathsep}{plain['PATH']}"
    return plain | {"PYTHONPATH": str(ROOT), "NO_COLOR": "1", "PATH": path}


@contextmanager
def first_shell(folder: Path, port: int, block: str, *, model: str = "penstock-demo", **more: str) -> Iterator[None]:
    """Run a block that ends with a command which serves `model` until Ctrl-C; `more` is further environment."""
    *before, (serves, _) = steps(block)
    script = "\n".join(["set -e", *(command for command, _ in before), f"exec {serves}"])
    log = folder / "first-shell"
    with log.open("wb") as output:
        process = subprocess.Popen(
            ["bash", "-c", script],
            cwd=folder,
            env=environ(folder, port) | more,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
        )
    served = f"{model} is served at http://127.0.0.1:{port}"
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


def run_second_shell(folder: Path, port: int, wanted: Sequence[tuple[str, list[str]]]) -> None:
    """Run commands in order; each must succeed and print the lines that the page shows."""
    lines = ["set -e", "exec 2>&1"]
    for number, (command, _) in enumerate(wanted):
        lines += [f"echo '{MARK}{number}'", command.replace("localhost:8000", f"localhost:{port}")]
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
