"""`penstock batch` as a process, against a real door and a worker with the sim engine."""

import json
import os
import pty
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from shared.accounts.tenants import Tenants
from shared.jobs.tenant_policy import TenantPolicy
from tests.support.batches import BOUNDS, a_line
from tests.support.processes import wait_for
from tests.support.program import ROOT, Program, Running, program
from tests.support.served import Served, sim_served

pytestmark = pytest.mark.ways("direct", reason="the command's requests are those of the package")
#: Generous, because a machine with two cores may be busy.
TIMEOUT_S = 120
#: `penstock`, with a real SIGINT right after it has written that the batch runs.
INTERRUPTED_AT_ONCE = """
import os, signal, sys
from shared.cli import main, output

write_note = output.write_note

def write_note_then_interrupt(text):
    write_note(text)
    if "runs until it ends" in text:
        os.kill(os.getpid(), signal.SIGINT)

output.write_note = write_note_then_interrupt
main()
"""


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with sim_served(tmp_path_factory.mktemp("batch"), **BOUNDS) as served:
        yield served
        served.stage.assert_sound()


@pytest.fixture
def penstock(served: Served, tmp_path: Path) -> Program:
    return program(tmp_path, PENSTOCK_URL=served.url)


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., Path]:
    def write(*lines: Any, name: str = "lines.jsonl") -> Path:
        path = tmp_path / name
        path.write_text("".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines))
        return path

    return write


def slow_lines(number: int = 100) -> list[dict[str, Any]]:
    """Lines: the first ends at once, and the others in some seconds each."""
    lines = [a_line(i) for i in range(number)]
    for line in lines[1:]:
        line["body"]["max_tokens"] = 1_000
    return lines


def ids_in(path: Path) -> list[str]:
    return [json.loads(line)["custom_id"] for line in path.read_text().splitlines()] if path.exists() else []


def said(process: Running, text: str) -> str:
    """Read notes of a running command until one contains a text; return that note."""
    for line in process.stderr:
        if text in line:
            return line
    raise AssertionError(f"the command ended without saying {text!r}")


def test_run_writes_the_answers_in_order_and_nothing_else_to_stdout(penstock: Program, write: Any) -> None:
    file = write(*(a_line(number) for number in range(20)))
    done = penstock("batch", "run", str(file), timeout_s=TIMEOUT_S)
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    assert ids_in(file.with_name("lines.out.jsonl")) == [f"line-{number}" for number in range(20)]
    assert sorted(path.name for path in file.parent.glob("lines*")) == ["lines.jsonl", "lines.out.jsonl"]
    assert "20 of 20 lines succeeded" in done.stderr


def test_a_file_may_begin_with_a_byte_order_mark(penstock: Program, write: Any) -> None:
    file = write(a_line(0), a_line(1))
    file.write_bytes(b"\xef\xbb\xbf" + file.read_bytes())
    done = penstock("batch", "run", str(file), timeout_s=TIMEOUT_S)
    assert done.returncode == 0, done.stderr
    assert ids_in(file.with_name("lines.out.jsonl")) == ["line-0", "line-1"]


def test_existing_results_are_replaced_only_if_asked_and_before_anything_is_sent(
    penstock: Program, write: Any, served: Served
) -> None:
    file, url = write(a_line(0)), f"{served.url}/v1/batches"
    out = file.with_name("lines.out.jsonl")
    out.write_text("precious")
    before = served.http.get(url).json()["data"]
    refused = penstock("batch", "run", str(file))
    assert (refused.returncode, out.read_text()) == (2, "precious")
    assert f"--out='{out}' exists" in refused.stderr
    assert served.http.get(url).json()["data"] == before
    done = penstock("batch", "run", str(file), "--force", "--json", timeout_s=TIMEOUT_S)
    assert json.loads(done.stdout)["request_counts"] == {"total": 1, "completed": 1, "failed": 0}
    assert ids_in(out) == ["line-0"]


def test_lines_that_fail_are_in_a_file_of_their_own_and_in_the_exit_code(penstock: Program, write: Any) -> None:
    bad = a_line(1)["body"] | {"model": "nobody"}
    file = write(a_line(0), a_line(1, body=bad))
    answers, failed = file.with_name("a"), file.with_name("f")
    done = penstock("batch", "run", str(file), "--out", str(answers), "--errors", str(failed), timeout_s=TIMEOUT_S)
    assert done.returncode == 1, done.stderr
    assert (ids_in(answers), ids_in(failed)) == (["line-0"], ["line-1"])
    assert "1 of 2 lines succeeded" in done.stderr


def test_invalid_lines_are_told_by_their_numbers(penstock: Program, write: Any) -> None:
    done = penstock("batch", "run", str(write(a_line(0), "no JSON", a_line(0))), timeout_s=TIMEOUT_S)
    assert done.returncode == 1
    assert "line 2: the line" in done.stderr
    assert "line 3: custom_id='line-0'" in done.stderr


@pytest.mark.parametrize(
    ("content", "expected"),
    [(None, "cannot be read"), ("", "has no field `url`"), ('{"custom_id": "a"}', "name the endpoint with --endpoint")],
)
def test_a_file_that_is_no_batch_is_a_usage_error(
    penstock: Program, write: Any, content: str | None, expected: str
) -> None:
    file = Path("no such file") if content is None else write(content)
    done = penstock("batch", "run", str(file))
    assert done.returncode == 2
    assert expected in done.stderr


@pytest.mark.parametrize("size", [5_000_000, 40_000_000])
def test_a_file_that_is_too_long_for_the_door_is_told_so(penstock: Program, write: Any, size: int) -> None:
    """The door answers before it has read the body; the longer one is more than the buffers of a connection hold."""
    done = penstock("batch", "run", str(write(a_line(0), "x" * size)), timeout_s=TIMEOUT_S)
    assert done.returncode == 1
    assert "PENSTOCK_MAX_FILE_BYTES" in done.stderr


def test_without_room_the_exit_code_says_to_come_back_and_no_file_is_left(
    penstock: Program, write: Any, served: Served
) -> None:
    # There is room for the file, but not for the record of the batch.
    file = write(a_line(0))
    Tenants(served.stage.client).set("small", TenantPolicy(max_bytes=2_000))
    done = penstock("batch", "run", str(file), "--tenant", "small")
    assert done.returncode == 75, done.stderr
    assert "of 2000 bytes" in done.stderr
    assert served.http.get("/v1/files", headers={"X-Tenant": "small"}).json()["data"] == []


def test_delete_leaves_no_file_at_the_door(penstock: Program, write: Any, served: Served) -> None:
    bad = a_line(1)["body"] | {"model": "nobody"}
    file = write(a_line(0), a_line(1, body=bad))
    penstock("batch", "run", str(file), "--delete", "--tenant", "tidy", timeout_s=TIMEOUT_S)
    assert ids_in(file.with_name("lines.out.jsonl")) == ["line-0"]
    assert served.http.get("/v1/files", headers={"X-Tenant": "tidy"}).json()["data"] == []


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_a_batch_continues_without_its_command_and_its_results_can_be_had_later(
    penstock: Program, write: Any, how: signal.Signals
) -> None:
    lines = [a_line(number) for number in range(40)]
    for line in lines:
        line["body"]["max_tokens"] = 100
    running = penstock.start("batch", "run", str(write(*lines)))
    batch_id = said(running, "runs until it ends").split()[1]
    running.send_signal(how)
    _, notes = running.communicate(timeout=TIMEOUT_S)
    if how is signal.SIGINT:
        assert running.returncode == 130, notes
        assert f"penstock batch follow {batch_id}" in notes
    answers = Path(write(name="answers"))
    done = penstock("batch", "follow", batch_id, "--out", str(answers), "--force", timeout_s=TIMEOUT_S)
    assert done.returncode == 0, done.stderr
    assert ids_in(answers) == [line["custom_id"] for line in lines]


def test_ctrl_c_at_the_moment_the_batch_is_announced_tells_how_to_get_its_results(
    penstock: Program, write: Any
) -> None:
    file = write(*(a_line(number) for number in range(5)))
    done = subprocess.run(
        [sys.executable, "-c", INTERRUPTED_AT_ONCE, "batch", "run", str(file)],
        env=penstock.environ,
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 130, done.stderr
    batch_id = done.stderr.split("batch ", 1)[1].split()[0]
    assert f"penstock batch follow {batch_id}" in done.stderr
    answers = file.with_name("answers")
    assert penstock("batch", "follow", batch_id, "--out", str(answers), timeout_s=TIMEOUT_S).returncode == 0


def test_ctrl_c_can_cancel_the_batch_and_keeps_the_answers_that_it_has(penstock: Program, write: Any) -> None:
    lines = slow_lines()
    file = write(*lines)
    running = penstock.start("batch", "run", str(file), "--on-interrupt", "cancel")
    said(running, "in_progress")
    running.send_signal(signal.SIGINT)
    _, notes = running.communicate(timeout=TIMEOUT_S)
    assert running.returncode == 1, notes
    assert " cancelled: " in notes
    found = [*ids_in(file.with_name("lines.out.jsonl")), *ids_in(file.with_name("lines.errors.jsonl"))]
    assert sorted(found) == sorted(line["custom_id"] for line in lines)


@pytest.mark.parametrize(("typed", "code"), [(b"c\n", 1), (b"\n", 130)])
def test_on_a_terminal_ctrl_c_asks_what_to_do(penstock: Program, write: Any, typed: bytes, code: int) -> None:
    file = write(*slow_lines())
    terminal, program_end = pty.openpty()
    environ = {**penstock.environ, "COLUMNS": "120", "TERM": "xterm-256color"}
    running = subprocess.Popen(
        penstock.command("batch", "run", str(file)),
        env=environ,
        stdin=program_end,
        stdout=program_end,
        stderr=program_end,
        start_new_session=True,
    )
    os.close(program_end)
    seen = b""

    def read_until(text: bytes) -> None:
        nonlocal seen
        while text not in seen:
            seen += os.read(terminal, 65_536)

    read_until(b"in_progress")
    running.send_signal(signal.SIGINT)
    read_until(b"to leave it running:")
    os.write(terminal, typed)
    read_until(b"cancelled: " if code == 1 else b"penstock batch follow")
    assert running.wait(TIMEOUT_S) == code
    os.close(terminal)
    batch_id = seen.split(b"batch ", 1)[1].split()[0].decode()
    penstock("batch", "cancel", batch_id)
    ended = penstock("batch", "follow", batch_id, "--force", "--out", str(file.with_name("o")), timeout_s=TIMEOUT_S)
    assert ended.returncode == 1


def test_following_survives_a_restart_of_the_door(penstock: Program, write: Any, served: Served) -> None:
    lines = [a_line(number) for number in range(40)]
    for line in lines:
        line["body"]["max_tokens"] = 100
    file = write(*lines)
    running = penstock.start("batch", "run", str(file))
    said(running, "in_progress")
    for process in psutil.Process(served.process.pid).children(recursive=True):
        process.kill()
    _, notes = running.communicate(timeout=TIMEOUT_S)
    assert running.returncode == 0, notes
    assert ids_in(file.with_name("lines.out.jsonl")) == [line["custom_id"] for line in lines]


def test_detach_prints_the_id_and_cancel_ends_the_batch(penstock: Program, write: Any, served: Served) -> None:
    done = penstock("batch", "run", str(write(*slow_lines())), "--detach")
    batch_id = done.stdout.strip()
    assert done.returncode == 0, done.stderr
    assert json.loads(penstock("batch", "cancel", batch_id, "--json").stdout)["id"] == batch_id
    url = f"{served.url}/v1/batches/{batch_id}"
    wait_for(lambda: served.http.get(url).json()["status"] == "cancelled", "the end", timeout_s=TIMEOUT_S)
    for command in ("follow", "cancel"):
        unknown = penstock("batch", command, "batch_none")
        assert (unknown.returncode, "batch_none" in unknown.stderr) == (1, True)
