"""Tests which model a worker that holds one at a time loads next, and when."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workers.swapping.schedule import Demand, Schedule


def demand(model, waiting=0, **fields):
    values = {"running": 0, "oldest_s": 0.0, "work_s": float(waiting), "weight": float(bool(waiting)), "load_s": 2.0}
    return Demand(model, waiting, **(values | fields))


def schedule(load_share=0.2, credit_s=0.0):
    """Return a schedule that has earned this credit when the time is 0."""
    found = Schedule(load_share, -credit_s / load_share)
    found.loaded(2.0, -credit_s / load_share, is_first=True)
    return found


def test_a_model_is_loaded_at_once_if_none_is_held():
    assert schedule().next_model(None, [demand("a"), demand("b", 1)], 0.0) == "b"


def test_nothing_is_loaded_if_nobody_waits_for_another_model():
    assert schedule(credit_s=9).next_model("a", [demand("a", 5), demand("b")], 0.0) is None


def test_an_idle_model_gives_way_as_soon_as_loading_is_paid_for():
    plan, demands = schedule(), [demand("a"), demand("b", 1)]
    assert plan.next_model("a", demands, 9.9) is None
    assert plan.next_model("a", demands, 10.0) == "b"


def test_a_busy_model_keeps_its_place_until_its_slice_has_ended():
    # A cycle of two loads takes 20 s: 4 s of loading, and 16 s that two equal weights share.
    plan, demands = schedule(credit_s=4), [demand("a", 9), demand("b", 1)]
    assert plan.next_model("a", demands, 0.0) == "b", "it was loaded 20 s ago"
    plan.loaded(2.0, 2.0)
    assert plan.next_model("b", [demand("a", 9), demand("b", 1)], 9.9) is None
    assert plan.next_model("b", [demand("a", 9), demand("b", 1)], 10.0) == "a"


def test_a_slice_is_longer_for_a_model_that_more_weight_waits_for():
    plan, demands = schedule(), [demand("a", 9, weight=3.0), demand("b", 1)]
    assert plan.next_model("a", demands, 11.9) is None, "a has three quarters of 16 s"
    assert plan.next_model("a", demands, 12.0) == "b"


def test_more_work_for_less_loading_goes_first_until_a_smaller_queue_has_aged():
    plan = schedule(credit_s=4)
    assert plan.next_model("x", [demand("a", 9), demand("b", 9, load_s=1.0)], 0.0) == "b"
    assert plan.next_model("x", [demand("a", 1, oldest_s=60.0), demand("b", 9)], 0.0) == "a"


def test_batch_jobs_are_not_passed_over_for_ever_although_others_go_first():
    plan = schedule(load_share=0.9, credit_s=4)
    demands = [demand("a", 9), demand("batch", 9, work_s=0.0, is_batch=True)]
    assert plan.next_model("x", demands, 0.0) == "a"
    plan.next_model("a", demands, 1.0)
    assert plan.next_model("x", demands, 60.0) == "a"
    plan.next_model("a", demands, 61.0)
    assert plan.next_model("x", demands, 120.0) == "batch"


def test_a_model_that_only_batch_jobs_wait_for_has_a_tenth_of_a_slice():
    plan = schedule()
    demands = [demand("a", 9, weight=1.0), demand("batch", 9, weight=1.0, work_s=0.0, is_batch=True)]
    # The slices of a cycle are 16 s together.
    assert plan.next_model("a", demands, 14.4) is None
    assert plan.next_model("a", demands, 14.6) == "batch"


def test_a_model_of_batch_jobs_gives_way_to_others_as_soon_as_loading_is_paid_for():
    plan = schedule()
    demands = [demand("batch", 9, weight=9.0, work_s=0.0, is_batch=True), demand("a", 1)]
    assert plan.next_model("batch", demands, 9.9) is None
    assert plan.next_model("batch", demands, 10.0) == "a"


def test_the_time_to_a_models_claims_adds_up_the_slices_and_loads_before_it():
    plan = schedule(load_share=0.5)
    demands = [demand("a", 9), demand("b", 5), demand("c", 1), demand("d")]
    # Three loads of 2 s, so three slices of 2 s each; the slice of a began at 0, and its end has paid for half a load.
    assert plan.ready_in_s("a", demands, 0.0) == pytest.approx({"b": 6.0, "c": 10.0, "d": 14.0})


def test_a_model_that_nobody_waits_for_is_ready_after_its_load_once_that_is_paid_for():
    assert schedule(credit_s=4).ready_in_s("a", [demand("a"), demand("b")], 0.0) == {"b": 2.0}
    assert schedule().ready_in_s("a", [demand("a"), demand("b")], 0.0) == {"b": 12.0}


@given(
    loads=st.lists(st.floats(1, 10), min_size=2, max_size=5),
    weights=st.lists(st.floats(0.1, 10), min_size=5, max_size=5),
    share=st.floats(0.1, 0.9),
)
def test_under_lasting_load_loading_keeps_to_its_share_and_every_model_is_served(loads, weights, share):
    plan, now_s, held, since_s = Schedule(share, 0.0), 0.0, None, 0.0
    loading_s, served, asked_s = 0.0, Counter(), dict.fromkeys(map(str, range(len(loads))), 0.0)
    step_s, end_s = min(loads) / 2, 8 * sum(loads) / share
    first = True
    while now_s < end_s:
        demands = [
            demand(str(i), 5, load_s=load, weight=weights[i], oldest_s=now_s - asked_s[str(i)])
            for i, load in enumerate(loads)
        ]
        chosen = plan.next_model(held, demands, now_s)
        if chosen is not None:
            if held is not None:
                served[held] += now_s - since_s
            now_s += loads[int(chosen)]
            plan.loaded(loads[int(chosen)], now_s, is_first=first)
            loading_s += 0 if first else loads[int(chosen)]
            held, since_s, first = chosen, now_s, False
        asked_s[held] = now_s
        now_s += step_s
    assert loading_s <= share * now_s + 1e-6
    assert set(served) | {held} == set(asked_s), "every model is loaded"
