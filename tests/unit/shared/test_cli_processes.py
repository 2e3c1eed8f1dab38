"""Tests how `penstock up` runs its processes: restarts after pauses, a kill after the grace period, leftovers."""

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from shared.cli.stack import processes
from shared.cli.stack.processes import ManagedProcesses, ProcessSpec, end_leftovers
from shared.state_dir import read_note, write_note
from tests.support.up import is_gone


def never() -> bool:
    return False


def a_child(code: str, **options) -> ProcessSpec:
    return ProcessSpec("child", [sys.executable, "-c", code], dict(os.environ), **options)


@pytest.fixture
def messages() -> list[str]:
    return []


@pytest.fixture
def managed(tmp_path: Path, messages: list[str]) -> Iterator[ManagedProcesses]:
    managed = ManagedProcesses(tmp_path, messages.append)
    yield managed
    managed.stop(0.0, never)


def restart_until(managed: ManagedProcesses, holds: Callable[[], bool], *, serving: bool = True) -> str:
    until_s = time.monotonic() + 20
    while True:
        sentence = managed.restart_dead(serving=serving)
        if sentence or holds():
            return sentence
        assert time.monotonic() < until_s
        time.sleep(0.005)


def test_a_process_that_ends_again_and_again_is_restarted_after_longer_and_longer_pauses(
    managed, messages, monkeypatch
):
    monkeypatch.setattr(processes, "FIRST_PAUSE_S", 0.01)
    monkeypatch.setattr(processes, "LONGEST_PAUSE_S", 0.03)
    managed.start(a_child("raise SystemExit(1)"))
    assert restart_until(managed, lambda: len(messages) == 4) == ""
    assert [line.rpartition(" in ")[2] for line in messages] == ["0.01 s", "0.02 s", "0.03 s", "0.03 s"]


def test_a_process_that_ends_before_the_system_serves_makes_the_start_fail(managed, messages):
    managed.start(a_child("raise SystemExit(1)"))
    assert restart_until(managed, never, serving=False) == "child ended with exit code 1"
    assert messages == []


def test_a_process_that_ends_with_a_fatal_exit_code_is_not_restarted(managed):
    managed.start(a_child("raise SystemExit(7)", fatal_exit_codes=frozenset({7})))
    assert restart_until(managed, never) == "child ended with exit code 7"


def test_a_process_that_ignores_sigterm_is_killed_with_its_children_after_the_grace_period(managed, tmp_path):
    ignores_sigterm = (
        "import signal, subprocess, sys, time; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'])\n"
        f"open({str(tmp_path / 'child')!r}, 'w').write(str(child.pid)); time.sleep(60)"
    )
    managed.start(a_child(ignores_sigterm))
    restart_until(managed, lambda: (tmp_path / "child").exists() and (tmp_path / "child").read_text() != "")
    child = psutil.Process(int((tmp_path / "child").read_text()))
    managed.stop(0.1, never)
    assert is_gone(child)
    assert not (tmp_path / "rooms.json").exists()


def test_running_processes_are_recorded_for_the_next_start(managed, tmp_path):
    managed.start(a_child("import time; time.sleep(60)"))
    [noted] = read_note(tmp_path / "rooms.json")["rooms"]
    assert noted["name"] == "child"
    os.kill(noted["pid"], 0)


def test_a_leftover_process_is_ended_and_an_unrelated_process_with_a_recorded_pid_is_not(tmp_path, messages):
    sleeper = "import time; time.sleep(60)"
    leftover = subprocess.Popen([sys.executable, "-c", sleeper], start_new_session=True)
    unrelated = subprocess.Popen([sys.executable, "-c", sleeper], start_new_session=True)
    try:
        born = processes._creation_time(leftover.pid)
        noted = [
            {"name": "worker 1", "pid": leftover.pid, "born": born},
            {"name": "worker 2", "pid": unrelated.pid, "born": born - 3600},
        ]
        write_note(tmp_path / "rooms.json", {"rooms": noted})
        end_leftovers(tmp_path, 5.0, messages.append, never)
        assert leftover.wait(5) == -15
        assert unrelated.poll() is None
        assert messages == [f"ending worker 1 (process {leftover.pid}) of an earlier start that was killed"]
    finally:
        for process in (leftover, unrelated):
            process.kill()
            process.wait()


def test_the_fatal_exit_codes_are_three_worker_codes_and_include_those_of_the_door():
    from shared.cli.stack.stack import FATAL_EXIT_CODES
    from web.runtime.start import EXIT_CONFIG, EXIT_STORE_UNFIT
    from workers.exit_codes import ExitCode

    assert {ExitCode.CONFIG, ExitCode.STORE_UNFIT, ExitCode.CONFIG_LOST} == FATAL_EXIT_CODES
    assert {EXIT_CONFIG, EXIT_STORE_UNFIT} <= FATAL_EXIT_CODES
