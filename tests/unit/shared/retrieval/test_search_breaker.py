"""Tests of the breaker that skips searches after repeated time-outs, by tenant and for all."""

import pytest

from shared.retrieval.breaker import Breaker
from shared.retrieval.errors import SearchesStopped


class Time:
    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def time() -> Time:
    return Time()


@pytest.fixture
def breaker(time: Time) -> Breaker:
    return Breaker(time)


def time_out(breaker: Breaker, tenant: str, times: int = 3) -> None:
    for _ in range(times):
        breaker.timed_out(tenant, 0.04)


def is_stopped(breaker: Breaker, tenant: str) -> bool:
    try:
        breaker.check(tenant, is_trial=False)
    except SearchesStopped:
        return True
    return False


def test_three_time_outs_in_a_row_stop_the_searches_of_their_tenant_alone(breaker):
    time_out(breaker, "red", 2)
    assert not is_stopped(breaker, "red")
    time_out(breaker, "red", 5)
    assert is_stopped(breaker, "red")
    assert not is_stopped(breaker, "blue")
    assert not breaker.is_open


def test_time_outs_of_several_tenants_stop_the_searches_of_all_but_for_one_trial_of_each_other_tenant(breaker, time):
    time_out(breaker, "red", 2)
    time_out(breaker, "blue", 1)
    assert breaker.is_open
    assert is_stopped(breaker, "red")
    assert is_stopped(breaker, "blue")
    breaker.check("green", is_trial=False)
    breaker.check("green")
    assert is_stopped(breaker, "green")
    breaker.timed_out("green", 0.04)
    time.now_s += 4
    assert is_stopped(breaker, "green")


def test_tenants_whose_searches_time_out_again_and_again_keep_no_trial_from_the_others(breaker, time):
    for _ in range(20):
        for tenant in ("red", "blue"):
            if not is_stopped(breaker, tenant):
                breaker.check(tenant)
                time_out(breaker, tenant, 3)
        breaker.check("green")
        breaker.succeeded("green")
        assert not breaker.is_open
        time.now_s += 2.5


def test_a_tenant_whose_last_time_out_is_long_ago_has_a_trial_of_its_own(breaker, time):
    time_out(breaker, "green", 1)
    time.now_s += 10.1
    time_out(breaker, "red", 3)
    time_out(breaker, "blue", 3)
    breaker.check("green")
    assert is_stopped(breaker, "green")


def test_a_success_of_any_tenant_shows_that_the_database_answers(breaker):
    time_out(breaker, "red", 2)
    breaker.succeeded("blue")
    time_out(breaker, "green", 1)
    assert not breaker.is_open
    time_out(breaker, "red", 1)
    assert is_stopped(breaker, "red")


def test_time_outs_count_only_if_they_are_close_together(breaker, time):
    for _ in range(10):
        time_out(breaker, "red", 1)
        time.now_s += 6
    assert not is_stopped(breaker, "red")


def test_a_search_with_hardly_any_time_says_nothing_about_the_database(breaker):
    for tenant in ("red", "blue", "green"):
        breaker.timed_out(tenant, 0.001)
    assert not breaker.is_open


def test_after_the_pause_one_search_is_tried_and_its_success_lets_all_through(breaker, time):
    time_out(breaker, "red")
    with pytest.raises(SearchesStopped, match=r"the next is tried in 8\.0 s"):
        breaker.check("red")
    time.now_s += 8.1
    assert not is_stopped(breaker, "red")
    breaker.check("red")
    assert is_stopped(breaker, "red")
    breaker.succeeded("red")
    assert not is_stopped(breaker, "red")


def test_a_tenant_that_is_skipped_itself_takes_no_trial_from_the_others(breaker, time):
    time_out(breaker, "red", 3)
    time_out(breaker, "blue", 3)
    time.now_s += 5.1
    for tenant in ("red", "blue"):
        with pytest.raises(SearchesStopped):
            breaker.check(tenant)
    breaker.check("green")


def test_a_trial_that_never_ends_does_not_stop_searches_for_good(breaker, time):
    time_out(breaker, "red")
    time.now_s += 8.1
    breaker.check("red")
    time.now_s += 8.1
    breaker.check("red")


def test_few_tenants_are_remembered(breaker):
    for number in range(10_000):
        breaker.timed_out(f"tenant{number}", 1.0)
        breaker.check(f"other{number}")
    assert len(breaker._tenants) <= 4_096
    assert len(breaker._trials) <= 4_096
    assert len(breaker._all.tenants) <= 2
    assert len(breaker._all.times_s) <= 3
