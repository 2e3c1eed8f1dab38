"""Tests the answer that all requests of a process share for up to a second."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from shared.clock import ManualClock
from shared.errors import StoreUnavailable
from tests.support.processes import wait_for
from web.runtime.shared_answer import MAX_AGE_S, SharedAnswer, SharedAnswers


class Counted:
    """Returns how often it was called, or raises an error, once the gate is open."""

    def __init__(self, error: BaseException | None = None) -> None:
        self.calls, self.error = 0, error
        self.gate = threading.Event()
        self.gate.set()

    def __call__(self) -> int:
        self.calls += 1
        assert self.gate.wait(20)
        if self.error is not None:
            raise self.error
        return self.calls


class CountingClock(ManualClock):
    """Counts how often it was read."""

    readings = 0

    def monotonic(self) -> float:
        self.readings += 1
        return super().monotonic()


def outcome_of(call: Callable[[], int]) -> int | str:
    try:
        return call()
    except StoreUnavailable as error:
        return str(error)


@pytest.mark.parametrize("error", [None, StoreUnavailable("away")])
def test_requests_of_the_same_second_share_an_answer_or_an_error(error: StoreUnavailable | None) -> None:
    compute, clock = Counted(error), ManualClock()
    shared = SharedAnswer(compute, clock)
    answers = [outcome_of(shared.get)]
    clock.advance(MAX_AGE_S)
    answers.append(outcome_of(shared.get))
    assert (answers[0], compute.calls) == (answers[1], 1)
    clock.advance(0.001)
    outcome_of(shared.get)
    assert compute.calls == 2


def test_an_error_that_is_not_kept_is_raised_once_and_an_answer_may_have_to_be_newer() -> None:
    compute, clock = Counted(StoreUnavailable("away")), ManualClock()
    shared = SharedAnswer(compute, clock, keeps_errors=False)
    assert outcome_of(shared.get) == "away"
    compute.error = None
    assert (shared.get(), shared.get()) == (2, 2)
    clock.advance(0.2)
    assert (shared.get(), shared.get(max_age_s=0.1)) == (2, 3)


def test_the_answer_after_an_error_is_a_good_one_as_soon_as_a_second_has_passed() -> None:
    compute, clock = Counted(StoreUnavailable("away")), ManualClock()
    shared = SharedAnswer(compute, clock)
    assert outcome_of(shared.get) == "away"
    compute.error = None
    clock.advance(MAX_AGE_S + 0.001)
    assert shared.get() == 2


def test_an_answer_that_is_wanted_often_is_computed_again_before_it_is_too_old() -> None:
    compute, clock = Counted(), ManualClock()
    shared = SharedAnswer(compute, clock, computes_early=True)
    assert shared.get() == 1
    clock.advance(0.6 * MAX_AGE_S)
    compute.gate.clear()
    # The next answer is being computed, and nobody waits for it.
    assert [shared.get() for _ in range(3)] == [1, 1, 1]
    compute.gate.set()
    wait_for(lambda: shared.get(0.1 * MAX_AGE_S) == 2, "the next answer")
    assert compute.calls == 2


def test_an_error_of_an_answer_that_nobody_waits_for_is_raised_for_nobody() -> None:
    compute, clock = Counted(), ManualClock()
    shared = SharedAnswer(compute, clock, keeps_errors=False, computes_early=True)
    shared.get()
    clock.advance(0.6 * MAX_AGE_S)
    compute.error = StoreUnavailable("away")
    assert shared.get() == 1
    wait_for(lambda: compute.calls == 2 and shared._kept is None, "the next computation to fail")
    compute.error = None
    clock.advance(MAX_AGE_S)
    assert shared.get() == 3


@pytest.mark.parametrize("error", [None, StoreUnavailable("away")])
def test_a_hundred_requests_at_once_cost_one_computation_however_long_it_takes(error: StoreUnavailable | None) -> None:
    compute, clock = Counted(error), CountingClock()
    shared = SharedAnswer(compute, clock)
    compute.gate.clear()
    with ThreadPoolExecutor(100) as pool:
        answers = [pool.submit(outcome_of, shared.get)]
        wait_for(lambda: compute.calls, "the computation to begin")
        clock.advance(10 * MAX_AGE_S)
        answers += [pool.submit(outcome_of, shared.get) for _ in range(99)]
        wait_for(lambda: clock.readings == 100, "all requests to read the clock, which they do inside the lock")
        with shared._lock:
            compute.gate.set()
        assert {answer.result(20) for answer in answers} == {"away" if error else 1}
    assert compute.calls == 1


def test_an_answer_is_shared_for_a_second_even_if_its_computation_takes_longer() -> None:
    clock, calls = ManualClock(), 0

    def compute() -> int:
        nonlocal calls
        calls += 1
        clock.advance(3 * MAX_AGE_S)
        return calls

    shared = SharedAnswer(compute, clock)
    assert [shared.get() for _ in range(5)] == [1] * 5


def test_a_computation_that_is_killed_does_not_leave_others_waiting() -> None:
    class Killed(BaseException):
        pass

    compute, clock = Counted(Killed()), ManualClock()
    shared = SharedAnswer(compute, clock)
    with pytest.raises(Killed):
        shared.get()
    compute.error = None
    clock.advance(MAX_AGE_S + 0.001)
    assert shared.get() == 2


def test_an_error_does_not_grow_with_each_request_that_gets_it() -> None:
    error = StoreUnavailable("away")
    shared = SharedAnswer(Counted(error), ManualClock())
    for _ in range(50):
        outcome_of(shared.get)
    traceback, frames = error.__traceback__, 0
    while traceback is not None:
        traceback, frames = traceback.tb_next, frames + 1
    assert frames < 10


def test_after_an_answer_was_forgotten_the_next_one_begins_anew_even_while_the_old_one_is_computed() -> None:
    compute, clock = Counted(), ManualClock()
    shared = SharedAnswer(compute, clock)
    shared.forget()
    compute.gate.clear()
    with ThreadPoolExecutor(2) as pool:
        old = pool.submit(shared.get)
        wait_for(lambda: compute.calls == 1, "the first computation")
        shared.forget()
        new = pool.submit(shared.get)
        wait_for(lambda: compute.calls == 2, "the second computation")
        compute.gate.set()
        old.result(20), new.result(20)
    assert shared.get() == new.result()
    assert compute.calls == 2


def test_a_forgotten_computation_that_ends_late_does_not_make_the_newer_answer_seem_younger() -> None:
    gates, clock = [threading.Event(), threading.Event()], ManualClock()
    begun: list[int] = []

    def compute() -> int:
        number = len(begun)
        begun.append(number)
        assert number >= len(gates) or gates[number].wait(20)
        return number

    shared = SharedAnswer(compute, clock)
    with ThreadPoolExecutor(1) as pool:
        old = pool.submit(shared.get)
        wait_for(lambda: begun == [0], "the first computation")
        shared.forget()
        gates[1].set()
        assert shared.get() == 1
        clock.advance(MAX_AGE_S)
        gates[0].set()
        assert old.result(20) == 0
    clock.advance(0.001)
    assert shared.get() == 2


def test_the_age_of_a_named_answer_is_counted_from_the_beginning_of_its_reading():
    """The answer may take as long as the store's timeout, and what it says may have changed meanwhile."""
    clock, said = ManualClock(), ["valid"]

    def read(_: str) -> str:
        answer = said[0]
        clock.advance(0.9)
        return answer

    answers = SharedAnswers(read, clock, max_age_s=0.49, most=10)
    answers.get("key")
    said[0] = "revoked"
    assert answers.get("key") == "revoked"


def test_a_process_that_can_have_no_more_threads_gives_the_kept_answer_and_computes_the_next_one_itself(monkeypatch):
    compute, clock = Counted(), ManualClock()
    shared = SharedAnswer(compute, clock, computes_early=True)
    assert shared.get() == 1
    clock.advance(0.6 * MAX_AGE_S)

    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as full:
        full.setattr(threading.Thread, "start", refuse)
        assert shared.get() == 1
    clock.advance(MAX_AGE_S)
    assert shared.get() == 2
