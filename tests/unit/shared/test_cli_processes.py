"""Rooms as processes: started again with patience, ended with force only where asking did not help."""

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from shared.cli.stack import processes
from shared.cli.stack.processes import ManagedProcess, ManagedProcesses, end_leftovers
from shared.state_dir import read_note, write_note
from tests.support.up import is_gone


def never() -> bool:
    return False


def room(code: str, **spelled) -> ManagedProcess:
    return ManagedProcess("room", [sys.executable, "-c", code], dict(os.environ), **spelled)


@pytest.fixture
def said() -> list[str]:
    return []


@pytest.fixture
def rooms(tmp_path: Path, said: list[str]) -> Iterator[ManagedProcesses]:
    rooms = ManagedProcesses(tmp_path, said.append)
    yield rooms
    rooms.stop(0.0, never)


def tend_until(rooms: ManagedProcesses, holds: Callable[[], bool], *, serving: bool = True) -> str:
    until_s = time.monotonic() + 20
    while True:
        sentence = rooms.tend(serving=serving)
        if sentence or holds():
            return sentence
        assert time.monotonic() < until_s
        time.sleep(0.005)


def test_a_room_that_dies_again_and_again_is_started_after_longer_and_longer_pauses(rooms, said, monkeypatch):
    monkeypatch.setattr(processes, "FIRST_PAUSE_S", 0.01)
    monkeypatch.setattr(processes, "LONGEST_PAUSE_S", 0.03)
    rooms.start(room("raise SystemExit(1)"))
    assert tend_until(rooms, lambda: len(said) == 4) == ""
    assert [line.rpartition(" in ")[2] for line in said] == ["0.01 s", "0.02 s", "0.03 s", "0.03 s"]


def test_a_death_before_the_system_serves_is_a_start_that_failed(rooms, said):
    rooms.start(room("raise SystemExit(1)"))
    assert tend_until(rooms, never, serving=False) == "room ended with exit code 1"
    assert said == []


def test_a_room_that_says_there_is_no_use_is_not_started_again(rooms):
    rooms.start(room("raise SystemExit(7)", hopeless=frozenset({7})))
    assert tend_until(rooms, never) == "room ended with exit code 7"


def test_a_room_that_does_not_listen_is_killed_with_its_children_when_the_grace_is_over(rooms, tmp_path):
    deaf = (
        "import signal, subprocess, sys, time; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'])\n"
        f"open({str(tmp_path / 'child')!r}, 'w').write(str(child.pid)); time.sleep(60)"
    )
    rooms.start(room(deaf))
    tend_until(rooms, lambda: (tmp_path / "child").exists() and (tmp_path / "child").read_text() != "")
    child = psutil.Process(int((tmp_path / "child").read_text()))
    rooms.stop(0.1, never)
    assert is_gone(child)
    assert not (tmp_path / "rooms.json").exists()


def test_what_runs_is_noted_for_the_next_start(rooms, tmp_path):
    rooms.start(room("import time; time.sleep(60)"))
    [noted] = read_note(tmp_path / "rooms.json")["rooms"]
    assert noted["name"] == "room"
    os.kill(noted["pid"], 0)


def test_a_leftover_is_ended_and_named_and_a_stranger_with_its_pid_is_left_alone(tmp_path, said):
    sleeper = "import time; time.sleep(60)"
    leftover = subprocess.Popen([sys.executable, "-c", sleeper], start_new_session=True)
    stranger = subprocess.Popen([sys.executable, "-c", sleeper], start_new_session=True)
    try:
        born = processes._born(leftover.pid)
        noted = [
            {"name": "worker 1", "pid": leftover.pid, "born": born},
            {"name": "worker 2", "pid": stranger.pid, "born": born - 3600},
        ]
        write_note(tmp_path / "rooms.json", {"rooms": noted})
        end_leftovers(tmp_path, 5.0, said.append, never)
        assert leftover.wait(5) == -15
        assert stranger.poll() is None
        assert said == [f"ending worker 1 (process {leftover.pid}) of an earlier start that was killed"]
    finally:
        for process in (leftover, stranger):
            process.kill()
            process.wait()


def test_the_codes_that_make_a_start_hopeless_are_the_workers_and_the_doors():
    from shared.cli.stack.stack import HOPELESS
    from web.runtime.start import EXIT_CONFIG, EXIT_STORE_UNFIT
    from workers.exit_codes import ExitCode

    assert {ExitCode.CONFIG, ExitCode.STORE_UNFIT, ExitCode.CONFIG_LOST} == HOPELESS
    assert {EXIT_CONFIG, EXIT_STORE_UNFIT} <= HOPELESS
