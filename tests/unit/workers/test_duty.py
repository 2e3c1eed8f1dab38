"""Tests of Duty: its passes repeat, rest, wake early, survive faults, and end when the duty is stopped."""

import threading
from collections.abc import Iterator

import pytest
from structlog.testing import capture_logs

from shared.errors import StoreUnavailable
from workers.duty import FIRST_RETRY_S, MAX_FAULTS, MAX_RETRY_S, RARE_RETRY_S, Duty


class Work:
    """The work of a duty: it counts its passes, and each returns `rest_s` or raises `fault`."""

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
def dead_duties() -> Iterator[list[str]]:
    """The names of the duties that died. Logs are captured, so that they do not clutter the output."""
    with capture_logs():
        yield []


def test_passes_repeat_until_the_duty_is_stopped(dead_duties):
    work = Work()
    duty = Duty(work, dead_duties.append)
    duty.start()
    for _ in range(5):
        assert work.began.acquire(timeout=5)
    assert duty.stop(5)
    passes = work.passes
    duty.wake()
    assert work.passes == passes
    assert dead_duties == []


def test_a_duty_that_rests_without_a_time_limit_runs_when_it_is_woken(dead_duties):
    work = Work(rest_s=None)
    duty = Duty(work, dead_duties.append)
    duty.start()
    assert work.began.acquire(timeout=5)
    assert not work.began.acquire(timeout=0.05)
    duty.wake()
    assert work.began.acquire(timeout=5)
    assert duty.stop(5)


def test_a_wake_during_a_pass_is_not_lost(dead_duties):
    work = Work(rest_s=None)
    duty = Duty(work, dead_duties.append)
    original_pass = work.one_pass

    def wake_duty_once():
        work.one_pass = original_pass
        duty.wake()
        return original_pass()

    work.one_pass = wake_duty_once
    duty.start()
    for _ in range(2):
        assert work.began.acquire(timeout=5)
    assert duty.stop(5)


def test_stopping_a_duty_that_was_never_started_succeeds(dead_duties):
    assert Duty(Work(), dead_duties.append).stop(1)


def test_rests_grow_while_the_store_is_away_and_a_wake_does_not_shorten_them(dead_duties):
    duty = Duty(Work(fault=StoreUnavailable("away")), dead_duties.append)
    rests = [duty.guarded_pass() for _ in range(8)]
    assert rests[0] == (FIRST_RETRY_S, False)
    assert rests[1] == (2 * FIRST_RETRY_S, False)
    assert rests[-1] == (MAX_RETRY_S, False)
    assert dead_duties == []


def test_rests_are_short_again_once_the_store_is_back(dead_duties):
    work = Work(fault=StoreUnavailable("away"))
    duty = Duty(work, dead_duties.append)
    for _ in range(5):
        duty.guarded_pass()
    work.fault = None
    assert duty.guarded_pass() == (0.0, True)
    work.fault = StoreUnavailable("away")
    assert duty.guarded_pass() == (FIRST_RETRY_S, False)


def test_a_duty_survives_fewer_faults_in_a_row_than_the_maximum(dead_duties):
    work = Work(fault=KeyError("a fault"))
    duty = Duty(work, dead_duties.append)
    for _ in range(MAX_FAULTS - 1):
        duty.guarded_pass()
    work.fault = None
    duty.guarded_pass()
    work.fault = KeyError("another")
    for _ in range(MAX_FAULTS - 1):
        duty.guarded_pass()
    assert dead_duties == []


def test_a_duty_whose_every_pass_fails_reports_its_death_and_stops(dead_duties):
    duty = Duty(Work(fault=KeyError("a fault")), dead_duties.append)
    for _ in range(MAX_FAULTS):
        duty.guarded_pass()
    assert dead_duties == ["work"]
    assert duty._stopping.is_set()


def test_a_duty_on_which_no_job_depends_is_retried_rarely_and_ends_nothing(dead_duties):
    work = Work(fault=KeyError("a fault"))
    duty = Duty(work, on_failure=None)
    rests = [duty.guarded_pass() for _ in range(3 * MAX_FAULTS)]
    assert set(rests[MAX_FAULTS:]) == {(RARE_RETRY_S, False)}
    assert not duty._stopping.is_set()
    work.fault = None
    assert duty.guarded_pass() == (0.0, True)
    work.fault = KeyError("another")
    assert duty.guarded_pass() == (FIRST_RETRY_S, False)
