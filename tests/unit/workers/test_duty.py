"""One duty: its passes run, rest, are woken, outlive faults, and end when asked."""

import threading
from collections.abc import Iterator

import pytest
from structlog.testing import capture_logs

from shared.errors import StoreUnavailable
from workers.duty import FIRST_REST_S, LONGEST_REST_S, MAX_FAULTS, Duty


class Work:
    """Passes that do as they are told, and count."""

    name = "work"

    def __init__(self, *, rest_s: float | None = 0.0, fault: Exception | None = None) -> None:
        self.rest_s, self.fault, self.passes = rest_s, fault, 0
        self.began = threading.Semaphore(0)

    def one_pass(self) -> float | None:
        self.passes += 1
        self.began.release()
        if self.fault is not None:
            raise self.fault
        return self.rest_s


@pytest.fixture
def died() -> Iterator[list[str]]:
    """The names of duties that died; nothing is logged but what is asserted."""
    with capture_logs():
        yield []


def test_passes_follow_one_another_until_it_is_stopped(died):
    work = Work()
    duty = Duty(work, died.append)
    duty.start()
    for _ in range(5):
        assert work.began.acquire(timeout=5)
    assert duty.stop(5)
    seen = work.passes
    duty.wake()
    assert work.passes == seen
    assert died == []


def test_a_duty_that_rests_until_woken_runs_when_it_is_woken(died):
    work = Work(rest_s=None)
    duty = Duty(work, died.append)
    duty.start()
    assert work.began.acquire(timeout=5)
    assert not work.began.acquire(timeout=0.05)
    duty.wake()
    assert work.began.acquire(timeout=5)
    assert duty.stop(5)


def test_a_wake_during_a_pass_is_not_lost(died):
    work = Work(rest_s=None)
    duty = Duty(work, died.append)
    first = work.one_pass

    def wakes_itself_once():
        work.one_pass = first
        duty.wake()
        return first()

    work.one_pass = wakes_itself_once
    duty.start()
    for _ in range(2):
        assert work.began.acquire(timeout=5)
    assert duty.stop(5)


def test_a_duty_that_was_never_started_stops(died):
    assert Duty(Work(), died.append).stop(1)


def test_rests_grow_while_the_store_is_away_and_no_wake_ends_them(died):
    duty = Duty(Work(fault=StoreUnavailable("away")), died.append)
    rests = [duty.guarded_pass() for _ in range(8)]
    assert rests[0] == (FIRST_REST_S, False)
    assert rests[1] == (2 * FIRST_REST_S, False)
    assert rests[-1] == (LONGEST_REST_S, False)
    assert died == []


def test_rests_are_short_again_once_the_store_is_back(died):
    work = Work(fault=StoreUnavailable("away"))
    duty = Duty(work, died.append)
    for _ in range(5):
        duty.guarded_pass()
    work.fault = None
    assert duty.guarded_pass() == (0.0, True)
    work.fault = StoreUnavailable("away")
    assert duty.guarded_pass() == (FIRST_REST_S, False)


def test_a_duty_outlives_faults_of_its_own(died):
    work = Work(fault=KeyError("a fault"))
    duty = Duty(work, died.append)
    for _ in range(MAX_FAULTS - 1):
        duty.guarded_pass()
    work.fault = None
    duty.guarded_pass()
    work.fault = KeyError("another")
    for _ in range(MAX_FAULTS - 1):
        duty.guarded_pass()
    assert died == []


def test_a_duty_whose_every_pass_fails_says_that_it_has_died_and_stops(died):
    duty = Duty(Work(fault=KeyError("a fault")), died.append)
    for _ in range(MAX_FAULTS):
        duty.guarded_pass()
    assert died == ["work"]
    assert duty._stopping.is_set()
