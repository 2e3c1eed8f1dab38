"""Figures of a run: what counts as useful, as wasted, as answered in time; the max-min oracle; the bound."""

import pytest

from bench.sim.asks import Ask
from bench.sim.fairness import Scenario, Services, max_min
from bench.sim.ledger import Window, jain, judged, percentile, success, useful_wtps, waste
from bench.sim.simulation import Run

WINDOW = Window(10_000, 20_000)


def an_ask(*, at_ms=11_000.0, ended_ms=12_000.0, outcome="succeeded", deadline_ms=10_000, computed=(10, 5)):
    ask = Ask(0, "blue", at_ms, 10, 5, 20, deadline_ms)
    ask.sent_ms, ask.ended_ms, ask.outcome = at_ms, ended_ms, outcome
    ask.computed_prompt, ask.computed_answer = computed
    return ask


def a_run(*asks):
    return Run(list(asks), [], 20.0)


def test_an_answer_in_time_is_worth_its_prompt_and_four_times_its_tokens():
    assert useful_wtps(a_run(an_ask()), WINDOW) == 30 / 10


@pytest.mark.parametrize(
    "ask",
    [
        an_ask(outcome="expired"),
        an_ask(ended_ms=12_001.0, deadline_ms=1_000),
        an_ask(ended_ms=21_000.0),
        an_ask(at_ms=1_000.0, ended_ms=9_000.0),
    ],
)
def test_what_is_late_or_outside_the_window_is_not_useful(ask):
    assert useful_wtps(a_run(ask), WINDOW) == 0


def test_waste_is_what_was_computed_for_answers_that_were_not_ready_in_time():
    late = an_ask(outcome="expired", computed=(10, 0))
    assert waste(a_run(an_ask(), late), WINDOW) == pytest.approx(10 / 40)
    assert waste(a_run(), WINDOW) == 0


def test_an_ask_whose_fate_is_open_is_not_judged_unless_all_are():
    open_ask = an_ask(outcome="", ended_ms=None, deadline_ms=60_000)
    refused = an_ask(outcome="", ended_ms=None)
    refused.gave_up_ms = 11_000.0
    run = a_run(an_ask(), open_ask, refused)
    assert judged(run, WINDOW) == [run.asks[0], refused]
    assert judged(run, WINDOW, sent_until_ms=12_000) == run.asks
    assert success(run.asks) == pytest.approx(1 / 3)


def test_percentiles_are_of_what_was_seen():
    assert percentile(range(100), 0.99) == 99
    assert percentile([7.0], 0.5) == 7.0
    assert percentile([], 0.5) != percentile([], 0.5)


def test_jains_index_is_one_among_equals_and_a_share_when_one_has_all():
    assert jain([3.0, 3.0, 3.0]) == pytest.approx(1)
    assert jain([1.0, 0.0, 0.0, 0.0]) == pytest.approx(0.25)


def test_max_min_gives_small_demands_whole_and_shares_the_rest_by_weight():
    shares = max_min({"small": 10, "big": 1_000, "double": 1_000}, {"double": 2.0}, 310)
    assert shares == {"small": 10, "big": pytest.approx(100), "double": pytest.approx(200)}


def test_max_min_gives_nobody_more_than_it_asks_for():
    assert max_min({"a": 5, "b": 7}, {}, 100) == {"a": 5, "b": 7}


def test_the_difference_counts_only_while_both_wait():
    services = Services(
        moments=[0, 1, 2, 3],
        served=[{"a": 0, "b": 0}, {"a": 50, "b": 0}, {"a": 90, "b": 10}, {"a": 500, "b": 10}],
        waits=[frozenset("ab"), frozenset("ab"), frozenset("ab"), frozenset("a")],
    )
    assert services.worst() == 80
    assert services.jain_while_all_wait() == pytest.approx((90 + 10) ** 2 / (2 * (90**2 + 10**2)))


def test_a_break_begins_the_comparison_anew():
    services = Services(
        moments=[0, 1, 2],
        served=[{"a": 0, "b": 0}, {"a": 100, "b": 0}, {"a": 130, "b": 0}],
        waits=[frozenset("ab"), frozenset("a"), frozenset("ab")],
    )
    assert services.worst() == 0


def test_the_bound_is_twice_the_longest_prompt_or_what_a_full_batch_generates():
    asks = (Ask(0, "a", 0, 3_000, 10, 100, 1), Ask(1, "b", 0, 10, 100, 100, 1))
    assert Scenario(asks, {}, 1.0, slots=4).batch_bound_wt == 2 * 3_000
    assert Scenario(asks, {}, 1.0, slots=16).batch_bound_wt == 2 * 4 * 16 * 100
