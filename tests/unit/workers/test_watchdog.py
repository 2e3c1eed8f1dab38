"""The watchdog ends a process that runs jobs and makes no token, and no other."""

from shared.clock import HeldClock
from workers.duties.watchdog import Watchdog
from workers.exit_codes import ExitCode


class Scene:
    """A watchdog with a stall of 4 s, which looks every second."""

    def __init__(self) -> None:
        self.tokens, self.busy, self.ended = 0, True, []
        self.clock = HeldClock()
        self.watchdog = Watchdog(
            stall_ms=4_000, tokens=lambda: self.tokens, busy=lambda: self.busy, clock=self.clock, end=self.ended.append
        )

    def look(self, seconds: float, *, tokens: int = 0) -> None:
        """Look once a second for so long, while so many tokens are made each second."""
        for _ in range(int(seconds)):
            self.clock.advance(1.0)
            self.tokens += tokens
            assert self.watchdog.one_pass() == 1.0


def test_silence_while_something_runs_ends_the_process():
    scene = Scene()
    scene.look(3)
    assert scene.ended == []
    scene.look(1)
    assert scene.ended == [ExitCode.STALL]


def test_one_token_in_time_is_enough():
    scene = Scene()
    for _ in range(10):
        scene.look(3)
        scene.look(1, tokens=1)
    assert scene.ended == []


def test_an_idle_engine_may_be_silent():
    scene = Scene()
    scene.busy = False
    scene.look(60)
    scene.busy = True
    scene.look(3)
    assert scene.ended == []


def test_time_in_which_the_whole_process_was_stopped_proves_nothing():
    scene = Scene()
    scene.look(1)
    scene.clock.advance(3_600.0)
    scene.watchdog.one_pass()
    assert scene.ended == []
    scene.look(1)
    assert scene.ended == [ExitCode.STALL]
