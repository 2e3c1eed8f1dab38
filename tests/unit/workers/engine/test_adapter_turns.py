"""Tests of the turns of adapters: one adapter's rows run at a time, and none waits for long."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workers.engine.adapter_turns import LONGEST_TURN_S, TURN_S, Turn, next_turn, turn_length_s

ORDER = ("", "a", "b", "c")
RUNNING = st.sets(st.sampled_from(ORDER), min_size=1)


def test_an_adapter_keeps_its_turn_until_it_is_over():
    turn = next_turn(ORDER, {"a", "b"}, None, 5.0)
    assert turn == Turn("a", 5.0 + TURN_S)
    assert next_turn(ORDER, {"a", "b"}, turn, 5.0 + 0.9 * TURN_S) is turn
    assert next_turn(ORDER, {"a", "b"}, turn, 5.0 + TURN_S).adapter == "b"


def test_a_turn_ends_when_nothing_of_its_adapter_runs():
    assert next_turn(ORDER, {"", "b"}, Turn("a", 9.0), 5.0).adapter == "b"


def test_an_adapter_that_is_alone_keeps_the_turn_and_gives_way_at_once_when_another_comes():
    turn = Turn("b", 5.0)
    assert next_turn(ORDER, {"b"}, turn, 60.0) is turn
    assert next_turn(ORDER, {"b", ""}, turn, 60.0).adapter == ""


@given(st.lists(st.tuples(RUNNING, st.floats(0.0, 2 * TURN_S)), min_size=1, max_size=60))
def test_the_turn_is_always_one_that_has_sequences_and_nobody_waits_for_two_turns_of_another(steps):
    turn, now_s, since = None, 0.0, {}
    for running, passed_s in steps:
        before, turn = turn, next_turn(ORDER, running, turn, now_s)
        assert turn.adapter in running
        began = turn is not before
        for name in ORDER:
            if name == turn.adapter or name not in running:
                since.pop(name, None)
            elif began:
                since.setdefault(name, []).append(turn.adapter)
                assert len(set(since[name])) == len(since[name])
        now_s += passed_s


def test_turns_are_longer_where_a_change_of_the_adapter_takes_long_within_bounds():
    assert turn_length_s(0.0) == turn_length_s(0.004) == TURN_S
    assert turn_length_s(0.02) == pytest.approx(0.2)
    assert turn_length_s(3.0) == LONGEST_TURN_S
