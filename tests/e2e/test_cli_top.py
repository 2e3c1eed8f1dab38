"""`penstock top`: one frame for programs and for terminals, and the live table."""

import json
import os
import pty
import re
import subprocess
import time
from pathlib import Path

import pytest
import redis

from shared.store.store import Store
from tests.support.builders import a_heartbeat, a_job, admitted, claim_one
from tests.support.in_process import InProcess
from tests.support.program import Program, program


@pytest.fixture
def penstock(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, store_url: str, redis_client: redis.Redis) -> InProcess:
    """The commands on the session's store, which is empty."""
    return InProcess(monkeypatch, tmp_path, store_url)


@pytest.fixture
def process(tmp_path: Path, store_url: str, redis_client: redis.Redis) -> Program:
    """The program on the session's store, for commands that a test looks at while they run."""
    return program(tmp_path, REDIS_URL=store_url)


def set_scene(store: Store) -> None:
    """Let two tenants have jobs. One of the jobs runs on a worker with a long name."""
    worker = f"a-machine-with-a-long-name-{'x' * 20}-4711-a1b2c3"
    store.renew(a_heartbeat(worker, slots_busy=1), [])
    admitted(store, a_job("a" * 64))
    claim_one(store, worker)
    for _ in range(2):
        admitted(store, a_job("blue"))


def test_one_frame_is_json_for_programs(store: Store, penstock: InProcess) -> None:
    set_scene(store)
    frame = json.loads(penstock("top", "--once", "--json").stdout)
    assert (frame["inflight"], frame["waiting"], frame["running"], frame["draining"]) == (3, 2, 1, False)
    assert [(line["tenant"], line["waiting"], line["running"]) for line in frame["tenants"]] == [
        ("blue", 2, 0),
        ("a" * 64, 0, 1),
    ]
    (worker,) = frame["workers"]
    assert (worker["state"], worker["busy"], worker["slots"]) == ("serving", 1, 4)
    by_name = json.loads(penstock("top", "--once", "--json", "--sort", "tenant").stdout)
    assert by_name["tenants"][0]["tenant"] == "a" * 64


def test_without_a_terminal_the_live_table_is_refused_and_a_wrong_order_too(penstock: InProcess) -> None:
    for arguments, expected in ((["top"], "--once"), (["top", "--sort", "age"], "sort='age'")):
        refused = penstock(*arguments)
        assert (refused.returncode, refused.stdout) == (2, "")
        assert expected in refused.stderr


def test_the_live_table_fits_80_columns_obeys_keys_and_leaves_the_terminal_as_it_was(
    store: Store, process: Program
) -> None:
    set_scene(store)
    terminal, program_end = pty.openpty()
    environ = {**process.environ, "COLUMNS": "80", "LINES": "24", "TERM": "xterm-256color"}
    running = subprocess.Popen(
        process.command("top"), env=environ, stdin=program_end, stdout=program_end, stderr=program_end
    )
    seen = ""

    def read_until(text: str) -> None:
        nonlocal seen
        give_up_s = time.monotonic() + 60
        while text not in seen:
            assert time.monotonic() < give_up_s, seen
            seen += os.read(terminal, 65536).decode(errors="replace")

    try:
        read_until("by waiting")
        os.write(terminal, b"zt")
        read_until("by tenant")
        os.write(terminal, b"q")
        read_until("\x1b[?1049l")  # the end of the alternate screen
        assert running.wait(60) == 0
    finally:
        running.kill()
        running.wait()
        os.close(program_end)
        os.close(terminal)
    plain = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "\n", seen)
    assert max(len(line) for line in plain.splitlines()) <= 80
    assert "blue" in plain
    # The middle of the name is cut, so that the other columns are whole.
    assert "…" in plain
    assert "-4711-a1b2c3" in plain
