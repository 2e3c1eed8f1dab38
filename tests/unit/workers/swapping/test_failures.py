"""Tests for how long a model is left alone after it could not be loaded, by this worker or by another."""

import pytest

from shared.store.replies import PoolView
from workers.swapping.failures import Failures


def a_pool(load_failures=0, load_retry_in_ms=0):
    return {"a": PoolView("a", 0, 1, None, 0, 0, 0, None, 0, 0, load_failures, load_retry_in_ms)}


def test_each_failure_in_a_row_doubles_the_pause_up_to_five_minutes():
    failures = Failures()
    pauses = [failures.note("a", 4, 0.0).pause_s for _ in range(8)]
    assert pauses == [5, 10, 20, 40, 80, 160, 300, 300]


def test_a_worker_counts_the_failures_that_the_store_has_of_others():
    failures = Failures()
    failures.see(a_pool(load_failures=2, load_retry_in_ms=7_000))
    assert failures.is_paused("a", 0.0)
    assert failures.retry_in_s("a", 0.0) == 7
    failures.see(a_pool(load_failures=2))
    assert not failures.is_paused("a", 0.0)
    assert failures.note("a", 4, 0.0).count == 3


def test_a_model_that_was_loaded_begins_anew_and_so_does_a_replaced_one_whatever_the_store_has():
    failures = Failures()
    failures.note("a", 4, 0.0)
    failures.forget("a")
    assert failures.facts("a", 0.0) == {}
    failures.see(a_pool(load_failures=5, load_retry_in_ms=90_000))
    failures.forget("a", is_replaced=True)
    assert not failures.is_paused("a", 0.0)
    assert failures.facts("a", 0.0) == {"load_failures": 0}
    assert failures.note("a", 4, 0.0).count == 1


@pytest.mark.parametrize(
    ("code", "why"),
    [
        (4, "its file or its device could not be used"),
        (-9, "its process was ended by SIGKILL, perhaps for lack of memory"),
        (6, "its process ended with exit code 6"),
    ],
)
def test_a_failure_says_why(code, why):
    assert Failures().note("a", code, 0.0).why == why


def test_the_jobs_that_wait_are_given_up_at_the_second_failure():
    failures = Failures()
    failures.note("a", 4, 0.0)
    assert failures.given_up("a") is None
    failures.note("a", 4, 9.0)
    assert failures.given_up("a").count == 2


def test_a_replaced_file_clears_the_store_once_and_later_failures_of_others_count():
    failures = Failures()
    failures.see(a_pool(load_failures=5, load_retry_in_ms=90_000))
    failures.forget("a", is_replaced=True)
    assert failures.facts("a", 0.0) == {"load_failures": 0}
    failures.reported("a")
    failures.see(a_pool(load_failures=1, load_retry_in_ms=5_000))
    assert failures.is_paused("a", 0.0)
    assert failures.facts("a", 0.0) == {}, "another worker's failure must not be cleared"
