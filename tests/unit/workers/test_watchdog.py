"""Tests of the watchdog: it ends a process that runs jobs without computing tokens, and no other."""

from shared.clock import ManualClock
from workers.duties.watchdog import Watchdog
from workers.exit_codes import ExitCode


class Scene:
    """A watchdog that allows 4 s without a token and checks every second."""

    def __init__(self) -> None:
        self.tokens, self.busy, self.ended = 0, True, []
        self.clock = ManualClock()
        self.watchdog = Watchdog(
            stall_ms=4_000,
            progress=lambda: self.tokens,
            busy=lambda: self.busy,
            clock=self.clock,
            end=self.ended.append,
        )

    def run(self, seconds: float, *, tokens: int = 0) -> None:
        """Let this many seconds pass with one check a second, while `tokens` are computed each second."""
        for _ in range(int(seconds)):
            self.clock.advance(1.0)
            self.tokens += tokens
            assert self.watchdog.one_pass() == 1.0


def test_a_busy_engine_that_computes_no_token_for_the_stall_time_ends_the_process():
    scene = Scene()
    scene.run(3)
    assert scene.ended == []
    scene.run(1)
    assert scene.ended == [ExitCode.STALL]


def test_one_token_within_the_stall_time_keeps_the_process_alive():
    scene = Scene()
    for _ in range(10):
        scene.run(3)
        scene.run(1, tokens=1)
    assert scene.ended == []


def test_time_in_which_the_engine_is_idle_does_not_count_as_a_stall():
    scene = Scene()
    scene.busy = False
    scene.run(60)
    scene.busy = True
    scene.run(3)
    assert scene.ended == []


def test_a_long_suspension_of_the_process_counts_as_only_two_intervals():
    scene = Scene()
    scene.run(1)
    scene.clock.advance(3_600.0)
    scene.watchdog.one_pass()
    assert scene.ended == []
    scene.run(1)
    assert scene.ended == [ExitCode.STALL]
