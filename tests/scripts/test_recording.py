"""Tests that the jobs which a store has admitted can be recorded, to replay them under other settings."""

from bench.sim.record import from_store
from shared.jobs.job import Usage
from tests.support.builders import a_job, admitted, advance_clock, an_ending, claim_one, heartbeat


def test_a_recording_has_every_admitted_job_with_its_admission_time_and_its_true_lengths(store):
    heartbeat(store)
    admitted(store, a_job("blue", prompt_tokens=12, max_tokens=40, deadline_ms=30_000))
    advance_clock(store, 700)
    heartbeat(store)
    admitted(store, a_job("green", prompt_tokens=9, max_tokens=30))
    held = claim_one(store).held
    store.settle(an_ending(held, usage=Usage(11, 0, 17, 5, 100, 7)), "w1")
    first, second = from_store(store.client)
    assert (first.tenant, first.prompt, first.answer, first.max_tokens, first.deadline_ms) == (
        "blue",
        11,
        17,
        40,
        30_000,
    )
    assert (second.tenant, second.prompt, second.answer) == ("green", 9, 30)
    assert (first.at_ms, second.at_ms - 700 < 5_000) == (0, True)
    assert second.at_ms >= 700
