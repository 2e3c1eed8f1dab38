"""Tests the states and arrows of a job: it goes from admission to one end, and the outcomes are the ends."""

from shared.jobs.outcomes import Outcome
from shared.jobs.states import ACTIVE_STATES, ARROWS, TERMINAL_STATES, Arrow, JobState


def test_every_state_is_active_or_terminal():
    assert set(JobState) == ACTIVE_STATES | TERMINAL_STATES
    assert not ACTIVE_STATES & TERMINAL_STATES


def test_outcomes_are_the_terminal_states():
    assert {outcome.value for outcome in Outcome} == {state.value for state in TERMINAL_STATES}


def test_every_arrow_has_a_letter_a_source_and_a_target():
    assert set(ARROWS) == set(Arrow)
    assert sorted(arrow.value for arrow in Arrow) == list("abcdefghijk")


def test_no_arrow_leaves_a_terminal_state():
    assert {start for start, _ in ARROWS.values()} == {None, *ACTIVE_STATES}


def test_every_state_can_be_reached_from_admission():
    reached, before = {None}, set()
    while reached != before:
        before = set(reached)
        reached |= {end for start, end in ARROWS.values() if start in reached}
    assert reached == {None, *JobState}


def test_only_admission_creates_a_job_and_only_a_queued_job_is_claimed():
    assert [arrow for arrow, (start, _) in ARROWS.items() if start is None] == [Arrow.ADMITTED]
    assert [ends for ends in ARROWS.values() if ends[1] is JobState.RUNNING] == [(JobState.QUEUED, JobState.RUNNING)]
