"""docs/tcp.md documents every operation, field, status and code of the gate, and its examples work as printed."""

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from shared.jobs.states import JobState
from shared.settings.settings import Settings
from tests.support.gate import SLOW, a_gate
from tests.support.processes import ROOT, Stage
from web.gate.requests import CODES, OPS
from web.gate.server import GRACE_S

PAGE = (ROOT / "docs" / "tcp.md").read_text(encoding="utf-8")
CONSOLE = re.findall(r"^```console\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)

#: Replaces nc where it is not installed: copies stdin to the socket, passes its end on, copies the socket to stdout.
RELAY = """
import shutil, socket, sys, threading
connection = socket.create_connection((sys.argv[-2], int(sys.argv[-1])))
def send():
    for line in sys.stdin.buffer:
        connection.sendall(line)
    connection.shutdown(socket.SHUT_WR)
threading.Thread(target=send, daemon=True).start()
shutil.copyfileobj(connection.makefile("rb"), sys.stdout.buffer)
"""


@pytest.fixture(scope="module")
def port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    folder: Path = tmp_path_factory.mktemp("gate")
    with Stage(folder, **(SLOW | {"PENSTOCK_SIM_PREFILL_TPS": "2000"})) as stage:
        stage.worker()
        yield a_gate(stage)[1]


def rows(heading: str) -> dict[str, str]:
    """Map the first cell of each row to the rest of the row, for the first table under a heading."""
    section = re.search(rf"^##+ {heading}\n(.*?)(?=^##|\Z)", PAGE, re.DOTALL | re.MULTILINE)
    assert section, heading
    return dict(re.findall(r"^\| (`[^|]+?) \|(.*)\|$", section[1], re.MULTILINE))


def code_words(cell: str) -> set[str]:
    return set(re.findall(r"`(\w+)`", cell))


def test_every_operation_is_documented_with_its_fields() -> None:
    table = rows("Frames")
    assert {name.strip("`") for name in table} == set(OPS)
    for name, kind in OPS.items():
        fields = code_words(table[f"`{name}`"].split("|")[0]) - {"ref"}
        assert fields == set(kind.model_fields) - {"op", "ref"}, name


def test_every_field_of_a_submit_is_documented() -> None:
    explained = {name.strip("`") for name in rows("submit")}
    assert explained == set(OPS["submit"].model_fields) - {"op", "ref"}


def test_every_status_is_documented() -> None:
    statuses = {status for cell in rows("Frames that the gate sends") for status in code_words(cell)}
    assert statuses == {*JobState, "accepted", "yield", "started", "text", "ok", "pong", "error"}


def test_every_error_code_of_the_gate_is_documented_with_its_sentence() -> None:
    table = rows("Errors")
    assert {name.strip("`") for name in table} == set(CODES)
    for code, sentence in CODES.items():
        assert table[f"`{code}`"].strip().startswith(sentence), code


def test_the_documented_numbers_are_those_in_the_code(settings: Settings) -> None:
    words = " ".join(PAGE.split())
    assert f"for up to {GRACE_S:g} s" in words
    assert f"`PENSTOCK_GATE_STRANGER_BYTES` ({settings.gate_stranger_bytes >> 20} MiB)" in words
    assert f"`PENSTOCK_GATE_STRANGER_FRAME_MS` ({settings.gate_stranger_frame_ms / 1000:g} s)" in words
    assert f"`PENSTOCK_GATE_STRANGER_IDLE_MS` ({settings.gate_stranger_idle_ms / 1000:g} s)" in words
    assert f"penstock gate --listen {settings.gate_host_port[0]}:{settings.gate_host_port[1]}" in words


def shape(frame: Any) -> Any:
    """Return what is the same in every run: the tag and the status, and for other fields only the type."""
    return {name: frame[name] if name in {"ref", "status"} else type(frame[name]) for name in frame}


@pytest.mark.parametrize(
    "carrier", [pytest.param("nc", marks=pytest.mark.skipif(shutil.which("nc") is None, reason="needs nc")), "relay"]
)
@pytest.mark.parametrize("block", CONSOLE)
def test_the_shell_examples_work_as_printed(port: int, block: str, carrier: str, tmp_path: Path) -> None:
    commands = re.findall(r"^\$ (.*)$", block, re.MULTILINE)
    printed = [line for line in block.splitlines() if not line.startswith("$ ")]
    script = "\n".join(commands).replace("127.0.0.1 7070", f"127.0.0.1 {port}")
    # A slow machine needs a second to start the relay.
    script = script.replace("sleep 2", "sleep 8")
    if carrier == "relay":
        relay = tmp_path / "relay.py"
        relay.write_text(RELAY)
        script = f'nc() {{ {sys.executable} {relay} "$@"; }}\n{script}'
    done = subprocess.run(["bash", "-c", f"set -e\n{script}"], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    answers = [shape(json.loads(line)) for line in done.stdout.splitlines()]
    assert answers == [shape(json.loads(line)) for line in printed]


def test_the_python_client_works_as_printed(port: int) -> None:
    (program,) = re.findall(r"^```python\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
    program = program.replace("7070", str(port))
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    accepted, succeeded = done.stdout.splitlines()
    assert accepted == "accepted None"
    assert succeeded.startswith("succeeded w")
