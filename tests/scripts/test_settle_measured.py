"""Tests of the measurements when a job is settled: its times, by tenant and model."""

import pytest

from shared.jobs.job import ClaimRef, Ending, Usage
from shared.jobs.outcomes import Outcome
from shared.store import keys
from tests.support.builders import (
    MODEL,
    a_job,
    admitted,
    advance_clock,
    an_ending,
    claim_one,
    heartbeat,
    stat,
    view_of,
)


@pytest.fixture
def held(store) -> ClaimRef:
    """A job that worker w1 runs."""
    heartbeat(store)
    admitted(store, a_job())
    return claim_one(store).held


def queued_ms(store, held: ClaimRef) -> int:
    """Return how long the job was queued before its claim."""
    view = view_of(store, held.id)
    assert view.started_ms is not None
    return view.started_ms - view.admitted_ms


def test_an_ended_job_is_counted_once_by_tenant_model_and_outcome(store, held):
    store.settle(an_ending(held, usage=Usage(300, 40, 21, 5, 200, 30)), "w1")
    assert stat(store, "ended|succeeded") == 1
    assert stat(store, f"ended|blue|{MODEL}|succeeded") == 1
    assert [stat(store, f"tokens|blue|{MODEL}|{kind}") for kind in ("prompt", "cached", "completion")] == [300, 40, 21]
    # A generated token weighs as much as four prompt tokens, and reused ones were not computed.
    assert stat(store, f"served|blue|{MODEL}") == 300 - 40 + 4 * 21
    assert stat(store, f"h|time_to_first_token|blue|{MODEL}|m|sum_us") == 1_000 * (queued_ms(store, held) + 30)
    assert stat(store, f"h|time_per_output_token|blue|{MODEL}|10") == 1
    assert stat(store, f"h|request_duration|succeeded|blue|{MODEL}|sum_us") >= 0


def test_the_time_for_a_token_of_a_fast_model_is_counted_in_microseconds(store, held):
    """21 tokens in 7 ms: 20 intervals of 350 µs each."""
    store.settle(an_ending(held, usage=Usage(300, 0, 21, 5, 7, 200)), "w1")
    assert stat(store, f"h|time_per_output_token|blue|{MODEL}|5") == 1
    assert stat(store, f"h|time_per_output_token|blue|{MODEL}|sum_us") == 350
    assert stat(store, f"h|time_to_first_token|blue|{MODEL}|m|sum_us") == 1_000 * (queued_ms(store, held) + 200)


def test_the_time_to_the_first_token_counts_from_the_admission(store):
    heartbeat(store)
    admitted(store, a_job())
    advance_clock(store, 4_000)
    heartbeat(store)
    held = claim_one(store).held
    advance_clock(store, 300)
    store.settle(an_ending(held, usage=Usage(300, 0, 21, 5, 50, 200)), "w1")
    assert queued_ms(store, held) >= 4_000
    assert stat(store, f"h|time_to_first_token|blue|{MODEL}|m|sum_us") == 1_000 * (queued_ms(store, held) + 200)


def test_an_ended_job_without_tokens_adds_no_measurement(store, held):
    store.settle(Ending(held.id, held.token, Outcome.FAILED, code="context_length_exceeded"), "w1")
    assert not [name for name in store.snapshot(stats=True).stats if name.startswith(("h|time_", "wasted"))]
    assert store.client.hget(keys.tenant("blue"), keys.service_field(MODEL)) == b"0"
