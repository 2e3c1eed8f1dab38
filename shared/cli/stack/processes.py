"""Rooms as processes: started in sessions of their own, started again when they die, ended in order.

A session of its own keeps the terminal's Ctrl-C from a room until `up` tells it to stop. What runs
is noted in the state folder, so that the next `up` can end what a killed one left behind.
"""

import os
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from shared.state_dir import read_note, write_note

#: The pause before a room that died is started again: doubled with each death, up to the longest.
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.5, 30.0
#: After so long a life a death counts as the first again.
SETTLED_S = 60.0
#: How often something that ends is looked at.
LOOK_S = 0.05

Say = Callable[[str], None]


@dataclass(frozen=True)
class ManagedProcess:
    """What to run. `hopeless` are the exit codes after which starting it again does not help."""

    name: str
    command: Sequence[str]
    environ: dict[str, str]
    hopeless: frozenset[int] = frozenset()


class ManagedProcesses:
    """The processes of one `up`; used by its main thread only."""

    def __init__(self, state: Path, say: Say) -> None:
        self._note, self._say = state / "rooms.json", say
        self._tended: list[_Watched] = []

    def start(self, room: ManagedProcess) -> None:
        """Start a room and tend it from now on."""
        self._tended.append(_Watched(room))
        self._note_pids()

    def tend(self, *, serving: bool) -> str:
        """Start again what died, after its pause. A sentence when there is no use in that, else "".

        While the system is not yet `serving`, a death is a start that failed.
        """
        for tended in self._tended:
            code = tended.died()
            if code is not None:
                how = _how(code)
                if not serving or code in tended.room.hopeless:
                    return f"{tended.room.name} {how}"
                self._say(f"{tended.room.name} {how}; starting it again in {tended.pause_s:g} s")
            if tended.due():
                tended.start()
                self._note_pids()
        return ""

    def stop(self, grace_s: float, impatient: Callable[[], bool]) -> None:
        """Ask every room to stop, in the order of their start; after the grace, or when `impatient`, kill them."""
        living = [tended.process for tended in self._tended if tended.process.poll() is None]
        for process in living:
            process.terminate()
        until_s = time.monotonic() + grace_s
        while any(process.poll() is None for process in living):
            if impatient() or time.monotonic() > until_s:
                break
            time.sleep(LOOK_S)
        for process in living:
            if process.poll() is None:
                kill_group(process.pid)
            process.wait()
        self._note.unlink(missing_ok=True)

    def _note_pids(self) -> None:
        rooms = [{"name": tended.room.name, "pid": tended.process.pid, "born": tended.born} for tended in self._tended]
        write_note(self._note, {"rooms": rooms})


class _Watched:
    """One room, its process and its deaths."""

    def __init__(self, room: ManagedProcess) -> None:
        self.room = room
        self.pause_s = 0.0
        self._due_s: float | None = None
        self.start()

    def start(self) -> None:
        self._due_s = None
        self._started_s = time.monotonic()
        self.process = subprocess.Popen(
            self.room.command,
            env=self.room.environ,
            stdin=subprocess.DEVNULL,
            stdout=2,  # stdout is for what `up` has to say
            start_new_session=True,
        )
        self.born = _born(self.process.pid)

    def died(self) -> int | None:
        """The exit code of a death not told before."""
        if self._due_s is not None or self.process.poll() is None:
            return None
        now_s = time.monotonic()
        settled = now_s - self._started_s > SETTLED_S
        self.pause_s = FIRST_PAUSE_S if settled or not self.pause_s else min(self.pause_s * 2, LONGEST_PAUSE_S)
        self._due_s = now_s + self.pause_s
        return self.process.returncode

    def due(self) -> bool:
        return self._due_s is not None and time.monotonic() >= self._due_s


def end_leftovers(state: Path, grace_s: float, say: Say, impatient: Callable[[], bool]) -> None:
    """End the rooms of an earlier `up` that was killed: they hold its port and its device. They drain first."""
    noted = read_note(state / "rooms.json").get("rooms", [])
    living = [room for room in noted if _is_same(room)]
    for room in living:
        say(f"ending {room['name']} (process {room['pid']}) of an earlier start that was killed")
        with suppress(ProcessLookupError):
            os.kill(room["pid"], signal.SIGTERM)
    until_s = time.monotonic() + grace_s
    while any(_is_same(room) for room in living):
        if impatient() or time.monotonic() > until_s:
            for room in living:
                kill_group(room["pid"])
            break
        time.sleep(LOOK_S)


def kill_group(pid: int) -> None:
    """Kill a room and its children at once: gunicorn's workers are in its group."""
    with suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)


def _born(pid: int) -> float:
    with suppress(psutil.Error):
        return psutil.Process(pid).create_time()
    return 0.0


def _is_same(room: dict[str, object]) -> bool:
    """Whether the noted process still lives: the same pid, born at the same moment."""
    with suppress(psutil.Error):
        process = psutil.Process(int(str(room["pid"])))
        # The kernel counts the birth in ticks of 10 ms.
        same = abs(process.create_time() - float(str(room["born"]))) < 0.05
        return same and process.status() != psutil.STATUS_ZOMBIE
    return False


def _how(code: int) -> str:
    return f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
