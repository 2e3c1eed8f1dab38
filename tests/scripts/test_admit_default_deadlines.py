"""Tests of deadlines that no client named: a slow pool extends them, and a refusal names the deadline it is due to."""

from typing import Any

import pytest

from shared.jobs.job import NewJob
from shared.store import keys
from shared.store.store import Store
from tests.support.builders import MODEL, a_heartbeat, a_job, admitted, an_ending, claim_one, refused, view_of

LONGEST_MS = 600_000


@pytest.fixture
def slow(store: Store) -> Store:
    """A store whose only worker reads 40 prompt tokens and writes 2 tokens a second."""
    store.renew(a_heartbeat(slots=4, cells=100_000, facts={"mu_wtps": 40, "prefill_tps": 40, "tpot_ms": 500}), [])
    # A pool in which no job has succeeded lately refuses nothing while it is empty.
    admitted(store, a_job())
    store.settle(an_ending(claim_one(store).held), "w1")
    return store


def streamed(**overrides: Any) -> NewJob:
    """Return the job of a stream of 1,665 prompt tokens, which take 41.6 s, without any deadline of its client."""
    fields = {"prompt_tokens": 1_665, "deadline_ms": LONGEST_MS, "longest_deadline_ms": LONGEST_MS}
    return a_job(**(fields | {"start_within_ms": 30_000, "cost_mwt": None} | overrides))


def held(**overrides: Any) -> NewJob:
    """Return the job of a call that is held open for 128 tokens, which take 64 s, without a deadline of its client."""
    return streamed(**({"max_tokens": 128, "deadline_ms": 60_000, "start_within_ms": None} | overrides))


def patience_of(store: Store, job_id: str) -> tuple[int, int]:
    deadline, start = store.client.hmget(keys.rq_job(job_id), "penstock_patience_ms", "penstock_start_within_ms")
    return int(deadline), int(start)


@pytest.mark.parametrize(
    ("prompt_tokens", "start_ms"), [(10, 30_000), (600, 30_000), (1_665, 83_250), (8_000, 400_000)]
)
def test_a_long_prompt_extends_the_default_start_deadline_to_twice_its_time(slow, prompt_tokens, start_ms):
    job_id = admitted(slow, streamed(prompt_tokens=prompt_tokens))
    assert patience_of(slow, job_id) == (LONGEST_MS, start_ms)


def test_the_worker_is_told_the_extended_start_deadline(slow):
    admitted(slow, streamed())
    assert 80_000 < claim_one(slow, cells_free=100_000).start_in_ms <= 83_250


def test_a_slow_answer_extends_the_default_deadline(slow):
    job_id = admitted(slow, held())
    assert patience_of(slow, job_id) == (2 * (41_625 + 64_000), 0)
    assert view_of(slow, job_id).deadline_ms == 2 * (41_625 + 64_000)


def test_no_default_is_extended_beyond_the_longest_deadline(slow):
    job_id = admitted(slow, held(longest_deadline_ms=150_000))
    assert patience_of(slow, job_id) == (150_000, 0)


def test_a_busy_pool_too_waits_for_a_long_prompt(slow):
    for _ in range(4):
        admitted(slow, streamed(tenant="filler", prompt_tokens=10))
    assert len(slow.claim("w1", "filling", MODEL, room=4, cells_free=100_000)) == 4
    admitted(slow, streamed())


def test_a_pool_without_rates_extends_nothing(store):
    store.renew(a_heartbeat(), [])
    assert patience_of(store, admitted(store, streamed())) == (LONGEST_MS, 30_000)


def test_a_start_deadline_that_the_client_named_refuses_and_is_named(slow):
    answer = refused(slow, streamed(start_named=True))
    assert (answer.reason, answer.limit) == ("deadline_unmeetable", "predicted_start_ms")
    assert (answer.value, answer.max, answer.hopeless) == (41_625, 30_000, True)


def test_a_deadline_that_the_client_named_refuses_and_is_named(slow):
    answer = refused(slow, held(longest_deadline_ms=0, deadline_source="body"))
    assert (answer.reason, answer.limit) == ("deadline_unmeetable", "predicted_ms")
    assert (answer.value, answer.max, answer.hopeless) == (105_625, 60_000, True)


def test_if_only_the_end_is_late_the_deadline_is_named(slow):
    answer = refused(slow, streamed(max_tokens=200, deadline_ms=60_000, longest_deadline_ms=0, start_within_ms=50_000))
    assert (answer.limit, answer.value) == ("predicted_ms", 105_625)


def test_if_both_are_late_the_one_is_named_that_an_idle_system_would_miss(slow):
    answer = refused(slow, streamed(deadline_ms=55_000, longest_deadline_ms=0, start_within_ms=30_000))
    assert (answer.limit, answer.value) == ("predicted_start_ms", 41_625)


@pytest.mark.parametrize(
    ("named", "limit"),
    [
        ({"longest_deadline_ms": LONGEST_MS}, None),
        ({"longest_deadline_ms": LONGEST_MS, "start_named": True}, "predicted_start_ms"),
        ({}, "predicted_start_ms"),
    ],
)
def test_a_quote_extends_the_same_deadlines(slow, named, limit):
    quote = slow.quote(
        a_job(prompt_tokens=1_665, max_tokens=20, deadline_ms=LONGEST_MS, start_within_ms=30_000, **named)
    )
    assert (quote.refused.limit if quote.refused else None) == limit
