"""Starts the child processes of `penstock up`, restarts those that die, and stops all of them in order.

Each child runs in a session of its own, so Ctrl-C in the terminal signals only `up`, which then stops its children.
`up` records the pids of its children in the state folder. If `up` is killed, the next `up` in the same folder reads the
pids and ends the processes that still run.
"""

import os
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from shared.state_dir import read_note, write_note

#: `up` waits FIRST_PAUSE_S before it restarts a dead process. Each further death doubles the pause, up to
#: LONGEST_PAUSE_S.
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.5, 30.0
#: If a process ran longer than this before it died, the pause is FIRST_PAUSE_S again.
PAUSE_RESET_S = 60.0
#: How often `up` checks whether the processes that it is stopping have ended, in seconds.
POLL_INTERVAL_S = 0.05

#: The type of a function that writes one line for the operator.
Report = Callable[[str], None]


@dataclass(frozen=True)
class ProcessSpec:
    """A process to run. After an exit code in `fatal_exit_codes`, a restart would fail again and is not tried."""

    name: str
    command: Sequence[str]
    environ: dict[str, str]
    fatal_exit_codes: frozenset[int] = frozenset()
    is_worker: bool = False


class ManagedProcesses:
    """The child processes of one `penstock up`. Only its main thread may call the methods."""

    def __init__(self, state: Path, report: Report) -> None:
        self._pid_file, self._report = state / "rooms.json", report
        self._children: list[_Child] = []

    def start(self, spec: ProcessSpec) -> None:
        """Start a process, and add it to the processes that `restart_dead` restarts and `stop` stops."""
        self._children.append(_Child(spec))
        self._record_pids()

    def restart_dead(self, *, serving: bool) -> str:
        """Restart each dead process whose pause is over. Return "", or a sentence that says why `up` must stop.

        `up` must stop if a process ended with a fatal exit code. As long as `serving` is false, that is, before the
        whole stack was ready once, `up` must also stop if a process died for any other reason.
        """
        for child in self._children:
            code = child.take_exit_code()
            if code is not None:
                description = _describe_exit(code)
                if not serving or code in child.spec.fatal_exit_codes:
                    return f"{child.spec.name} {description}"
                self._report(f"{child.spec.name} {description}; starting it again in {child.pause_s:g} s")
            if child.restart_is_due():
                child.start()
                self._record_pids()
        return ""

    def stop(self, grace_s: float, stop_now: Callable[[], bool], *, workers_only: bool = False) -> None:
        """Send SIGTERM to the processes in the order in which they were started, and wait until all have ended.

        Processes that still run after `grace_s` seconds, or when `stop_now` returns true, are killed. With
        `workers_only`, only the processes whose spec says that they are workers are stopped.
        """
        stopped = [child for child in self._children if child.spec.is_worker or not workers_only]
        running = [child.process for child in stopped if child.process.poll() is None]
        for process in running:
            process.terminate()
        kill_at_s = time.monotonic() + grace_s
        while any(process.poll() is None for process in running):
            if stop_now() or time.monotonic() > kill_at_s:
                break
            time.sleep(POLL_INTERVAL_S)
        for process in running:
            if process.poll() is None:
                kill_group(process.pid)
            process.wait()
        if not workers_only:
            self._pid_file.unlink(missing_ok=True)

    def _record_pids(self) -> None:
        records = [
            {"name": child.spec.name, "pid": child.process.pid, "born": child.created_s} for child in self._children
        ]
        write_note(self._pid_file, {"rooms": records})


class _Child:
    """One child process and, if it has died, the time of its next restart. The constructor starts the process."""

    def __init__(self, spec: ProcessSpec) -> None:
        self.spec = spec
        self.pause_s = 0.0
        self._restart_at_s: float | None = None
        self.start()

    def start(self) -> None:
        self._restart_at_s = None
        self._started_s = time.monotonic()
        self.process = subprocess.Popen(
            self.spec.command,
            env=self.spec.environ,
            stdin=subprocess.DEVNULL,
            stdout=2,  # stderr, because stdout is reserved for the output of `up` itself
            start_new_session=True,
        )
        self.created_s = _creation_time(self.process.pid)

    def take_exit_code(self) -> int | None:
        """If the process has died since the last call, schedule its restart and return its exit code.

        Otherwise return None: the process runs, or it waits for the restart that an earlier call scheduled.
        """
        if self._restart_at_s is not None or self.process.poll() is None:
            return None
        now_s = time.monotonic()
        reset = now_s - self._started_s > PAUSE_RESET_S
        self.pause_s = FIRST_PAUSE_S if reset or not self.pause_s else min(self.pause_s * 2, LONGEST_PAUSE_S)
        self._restart_at_s = now_s + self.pause_s
        return self.process.returncode

    def restart_is_due(self) -> bool:
        return self._restart_at_s is not None and time.monotonic() >= self._restart_at_s


def find_leftovers(state: Path) -> list[dict[str, Any]]:
    """Return the records of the processes that a killed `up` left running."""
    records = read_note(state / "rooms.json").get("rooms", [])
    return [record for record in records if _still_runs(record)]


def end_leftovers(state: Path, grace_s: float, report: Report, stop_now: Callable[[], bool]) -> None:
    """End the processes that a killed `up` left running, because they still occupy its port and its GPUs.

    SIGTERM is sent first, so that the processes can drain. Those that still run after `grace_s` seconds, or when
    `stop_now` returns true, are killed.
    """
    leftovers = find_leftovers(state)
    for record in leftovers:
        report(f"ending {record['name']} (process {record['pid']}) of an earlier start that was killed")
        with suppress(ProcessLookupError):
            os.kill(record["pid"], signal.SIGTERM)
    kill_at_s = time.monotonic() + grace_s
    while any(_still_runs(record) for record in leftovers):
        if stop_now() or time.monotonic() > kill_at_s:
            for record in leftovers:
                kill_group(record["pid"])
            break
        time.sleep(POLL_INTERVAL_S)


def kill_group(pid: int) -> None:
    """Kill a process and all others in its group, such as the worker processes of gunicorn."""
    with suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)


def _creation_time(pid: int) -> float:
    """Return the time at which the process was created, in seconds since the epoch, or 0.0 if it no longer exists."""
    with suppress(psutil.Error):
        return psutil.Process(pid).create_time()
    return 0.0


def _still_runs(record: dict[str, object]) -> bool:
    """Return whether the recorded process still runs. If the creation times differ, another process has its pid."""
    with suppress(psutil.Error):
        process = psutil.Process(int(str(record["pid"])))
        # The kernel stores creation times in ticks of 10 ms, so small differences are tolerated.
        same = abs(process.create_time() - float(str(record["born"]))) < 0.05
        return same and process.status() != psutil.STATUS_ZOMBIE
    return False


def _describe_exit(code: int) -> str:
    return f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
