"""`penstock demo` with the demo model: its figures, what else may run, and that nothing is left after any end."""

import json
import os
import re
import signal
import socket
import subprocess
import urllib.error
import urllib.request
from base64 import b64encode
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.support.preloaded import fork
from tests.support.processes import wait_for
from tests.support.program import program
from tests.support.up import Up

pytestmark = [pytest.mark.minutes, pytest.mark.timeout(400)]

SENDING = "before the flood:"


class Demo:
    """One run of `penstock demo` whose temporary folders are in `folder`."""

    def __init__(self, folder: Path, *arguments: str, **environ: str) -> None:
        self.folder = folder
        # The folder of sockets would have another name if the path were too long for a socket.
        self._program = program(folder, TMPDIR=str(folder), PENSTOCK_LOG_FORMAT="json", **environ)
        self._out, self._err = folder / "stdout", folder / "stderr"
        command, environ = self._program.command("demo", *arguments), self._program.environ
        with self._out.open("wb") as out, self._err.open("wb") as err, Path(os.devnull).open("rb") as nothing:
            self.process = fork(command, environ, nothing, out, err, folder=folder, new_session=True) or (
                subprocess.Popen(
                    command, env=environ, cwd=folder, stdin=nothing, stdout=out, stderr=err, start_new_session=True
                )
            )

    @property
    def out(self) -> str:
        return self._out.read_text()

    @property
    def err(self) -> str:
        return self._err.read_text()

    def wait_until_sending(self) -> None:
        wait_for(lambda: SENDING in self.err or self.process.poll() is not None, "the clients to send", timeout_s=180)
        assert self.process.poll() is None, self.err

    def exit_code(self) -> int:
        return self.process.wait(240)

    def processes(self) -> list[psutil.Process]:
        """Return the live processes of the demo's stack."""
        found = []
        for process in psutil.process_iter():
            try:
                ours = process.environ().get("PENSTOCK_STATE_DIR", "").startswith(f"{self.folder}/penstock-demo-")
                ours = ours or process.cwd().startswith(f"{self.folder}/penstock-demo-")
                if ours and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
            except psutil.Error:
                continue
        return found

    def leaves_nothing(self) -> None:
        """Wait until no process and no folder of the demo is left."""
        wait_for(
            lambda: not self.processes() and not list(self.folder.glob("penstock-*")),
            f"nothing to be left of {self.folder}",
            timeout_s=60,
        )


@contextmanager
def a_demo(folder: Path, *arguments: str, **environ: str) -> Iterator[Demo]:
    folder.mkdir(exist_ok=True)
    demo = Demo(folder, *arguments, **environ)
    try:
        yield demo
    finally:
        for process in [demo.process, *demo.processes()]:
            process.kill()
        demo.process.wait()
        print(demo.err)


def assert_is_a_flood(result: dict[str, Any]) -> None:
    """Check the figures that a demo of 15 s has printed."""
    assert (result["interrupted"], result["faults"], result["seconds"]) == (False, 0, 15)
    for phase in ("before_flood", "flood"):
        rows = result[phase]
        assert [row["tenant"] for row in rows] == ["red", "green", "blue"]
        for row in rows:
            assert row["sent"] == row["admitted"] + row["refused"], row
            assert row["admitted"] == row["answered"] + row["ended_early"], row
            assert sum(row["reasons"].values()) == row["refused"]
        assert sum(row["share"] for row in rows) == pytest.approx(1)
    red = result["flood"][0]
    assert red["clients"] == 49
    assert red["refused"] > 0, "49 clients do not fit into a queue"
    assert 50 <= red["retry_hint_ms"]["min"] <= red["retry_hint_ms"]["max"] <= 60_000


def test_the_console_opens_with_the_printed_password_and_ctrl_c_shows_what_was_seen_and_leaves_nothing(
    tmp_path: Path,
) -> None:
    with a_demo(tmp_path, "--seconds", "600", "--json") as demo:
        demo.wait_until_sending()
        (url,), (password,) = (re.findall(pattern, demo.err) for pattern in (r"user name: (\S+)", r"password: (\S+)"))
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(url, timeout=20)
        with refused.value as answer:
            assert answer.code == 401
        login = {"Authorization": "Basic " + b64encode(f"any:{password}".encode()).decode()}
        with urllib.request.urlopen(urllib.request.Request(url, headers=login), timeout=20) as page:
            assert b"red" in page.read()

        demo.process.send_signal(signal.SIGINT)
        assert demo.exit_code() == 130
        demo.leaves_nothing()
        assert json.loads(demo.out)["interrupted"]
        assert "Traceback" not in demo.err


def test_ctrl_c_during_the_start_leaves_nothing(tmp_path: Path) -> None:
    with a_demo(tmp_path, "--seconds", "600") as demo:
        wait_for(lambda: "starting" in demo.err, "the start", timeout_s=60)
        demo.process.send_signal(signal.SIGINT)
        assert demo.exit_code() == 130
        demo.leaves_nothing()
        assert "Traceback" not in demo.err


def test_a_demo_that_is_killed_leaves_nothing(tmp_path: Path) -> None:
    with a_demo(tmp_path, "--seconds", "600") as demo:
        demo.wait_until_sending()
        demo.process.kill()
        demo.leaves_nothing()


def test_a_demo_whose_stack_is_killed_says_so_and_leaves_nothing(tmp_path: Path) -> None:
    with a_demo(tmp_path, "--seconds", "600") as demo:
        demo.wait_until_sending()
        (stack,) = (one for one in demo.processes() if "shared.cli.demo.stack_process" in one.cmdline())
        stack.kill()
        assert demo.exit_code() == 1
        assert "the demo's stack ended with exit code -9" in demo.err
        demo.leaves_nothing()


def test_a_port_that_is_taken_is_named_before_anything_starts(tmp_path: Path) -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as listener:
        port = str(listener.getsockname()[1])
        with a_demo(tmp_path, "--port", port) as demo:
            assert demo.exit_code() == 2
            assert f"127.0.0.1:{port}" in demo.err
            assert "--port" in demo.err
            assert "starting" not in demo.err
            demo.leaves_nothing()


def test_a_demo_plays_a_flood_beside_another_one_and_penstock_up_and_leaves_nothing(tmp_path: Path) -> None:
    # None of the user's settings is used: neither this store, which does not exist, nor the bound.
    theirs = {"REDIS_URL": "redis://127.0.0.1:1", "PENSTOCK_MAX_INFLIGHT": "1", "PENSTOCK_AUTH": "open"}
    with (
        Up(tmp_path / "state") as up,
        a_demo(tmp_path / "one", "--seconds", "600") as one,
        a_demo(tmp_path / "two", "--seconds", "15", "--json", **theirs) as two,
    ):
        up.serving()
        one.wait_until_sending()
        assert two.exit_code() == 0, two.err
        two.leaves_nothing()
        assert_is_a_flood(json.loads(two.out))
        assert one.process.poll() is None
        job_id = up.submit(5)
        wait_for(lambda: up.job(job_id)["status"] == "succeeded", "a job of the other stack", timeout_s=100)
        one.process.send_signal(signal.SIGTERM)
        one.exit_code()
        one.leaves_nothing()


def test_on_a_terminal_the_tables_fit_into_80_columns(tmp_path: Path) -> None:
    seen = program(tmp_path, TMPDIR=str(tmp_path)).on_a_terminal("demo", "--seconds", "5", columns=80)
    lines = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", seen).replace("\r", "\n").split("\n")
    assert [line for line in lines if len(line.rstrip()) > 80] == []
    red = [number for number, line in enumerate(lines) if line.startswith("red ")]
    assert len(red) > 4, "tables were drawn while the demo ran"
    names = [[line.split()[:1] for line in lines[number : number + 3]] for number in red]
    assert all(three == [["red"], ["green"], ["blue"]] for three in names), "a team takes one line"


@pytest.mark.parametrize("arguments", [("--seconds", "0"), ("--flooders", "1000"), ("--port", "70000")])
def test_an_option_out_of_range_is_refused(tmp_path: Path, arguments: tuple[str, str]) -> None:
    with a_demo(tmp_path, *arguments) as demo:
        assert demo.exit_code() == 2
        assert arguments[1] in demo.err
        demo.leaves_nothing()
