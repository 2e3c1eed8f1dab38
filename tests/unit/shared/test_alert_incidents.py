"""When a condition is told, told again and told to have ended."""

import json

import pytest

from shared.alerts.conditions import Condition, finding
from shared.alerts.incidents import FIRST_REST_MS, LONGEST_REST_MS, MAX_OPEN, Incidents, parse_incidents

FOR_MS, REPEAT_MS = 60_000, 3_600_000
T = 1_700_000_000_000
DEAD = finding(Condition.MODEL_NOT_SERVED, "m", "model m is not served")


def statuses(state: Incidents, now_ms: int, *, holds: bool = True) -> list[str]:
    """Look at the condition at a time; return what is told, which succeeds."""
    state.note([DEAD] if holds else [], now_ms)
    lines = state.due(now_ms, for_ms=FOR_MS, repeat_ms=REPEAT_MS)
    state.told(lines, now_ms)
    return [line.status for line in lines]


def test_a_condition_is_told_when_it_has_held_and_again_after_the_interval():
    state = Incidents()
    times = [0, FOR_MS - 1, FOR_MS, FOR_MS + 1, FOR_MS + REPEAT_MS - 1, FOR_MS + REPEAT_MS]
    assert [statuses(state, T + ms) for ms in times] == [[], [], ["firing"], [], [], ["firing"]]


def test_a_condition_that_holds_for_a_moment_is_not_told():
    state = Incidents()
    assert [statuses(state, T), statuses(state, T + 1_000, holds=False), statuses(state, T + FOR_MS)] == [[], [], []]


def test_an_end_is_told_once_and_a_condition_that_comes_back_before_is_the_same():
    state = Incidents()
    statuses(state, T)
    assert statuses(state, T + FOR_MS) == ["firing"]
    assert statuses(state, T + FOR_MS + 5_000, holds=False) == []
    assert statuses(state, T + FOR_MS + 10_000) == []
    assert statuses(state, T + 2 * FOR_MS + 10_000, holds=False) == ["resolved"]
    assert statuses(state, T + 9 * FOR_MS, holds=False) == []
    assert state.open == {}


def test_a_condition_that_was_not_judged_is_not_told_to_have_ended():
    state = Incidents()
    statuses(state, T)
    statuses(state, T + FOR_MS)
    state.note([], T + 9 * FOR_MS, unknown={Condition.MODEL_NOT_SERVED})
    assert state.due(T + 9 * FOR_MS, for_ms=FOR_MS, repeat_ms=REPEAT_MS) == []


def test_failed_tries_wait_longer_and_longer_and_are_made_again():
    state, waits, now_ms = Incidents(), [], T
    state.note([DEAD], now_ms)
    for _ in range(12):
        assert state.due(now_ms, for_ms=0, repeat_ms=REPEAT_MS) != []
        state.failed("timed_out", now_ms, lambda: 1.0)
        waits.append(state.next_ms - now_ms)
        assert state.due(state.next_ms - 1, for_ms=0, repeat_ms=REPEAT_MS) == []
        now_ms = state.next_ms
        state.note([DEAD], now_ms)
    assert (waits[0], waits[1], waits[-1]) == (FIRST_REST_MS, 2 * FIRST_REST_MS, LONGEST_REST_MS)
    assert (state.tries, state.last) == (12, "timed_out")


def test_the_state_is_bounded_and_survives_as_text():
    state = Incidents()
    state.note([finding(Condition.BUDGET, f"tenant t{i}, day", "used" * 999) for i in range(2 * MAX_OPEN)], T)
    assert len(state.open) == MAX_OPEN
    assert len(state.as_text()) < 100_000
    assert parse_incidents(state.as_text(), T) == state


@pytest.mark.parametrize(
    "stored",
    [
        "",
        "nonsense",
        "[]",
        "7",
        '{"open":7}',
        '{"open":[7]}',
        '{"open":[{}]}',
        '{"tries":"many"}',
        '{"tries":1e999}',
        '{"samples":[[1]]}',
        "[" * 9_000,
        '{"open":[{"condition":"odd","subject":"","text":"","since_ms":1,"seen_ms":1,"told_ms":1}]}',
    ],
)
def test_a_state_that_another_program_has_spoiled_is_an_empty_one(stored):
    assert parse_incidents(stored, T) == Incidents()


def test_a_time_in_the_future_becomes_now():
    state = Incidents()
    statuses(state, T)
    statuses(state, T + FOR_MS)
    stored = json.loads(state.as_text())
    stored["open"][0]["told_ms"] = T * 9
    stored["next_ms"], stored["tries"] = T * 9, 1
    read = parse_incidents(json.dumps(stored), T + FOR_MS)
    assert read.open[DEAD.key].told_ms == T + FOR_MS
    assert statuses(read, T + FOR_MS + REPEAT_MS) == ["firing"]
