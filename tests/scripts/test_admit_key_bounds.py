"""Tests the bounds of one API key, which hold beside those of its tenant; they are refused in the same way."""

import pytest

from shared.jobs.key_bounds import KeyBounds
from shared.jobs.outcomes import Outcome
from shared.store import keys
from shared.store.store import Store
from tests.support.builders import MODEL, a_heartbeat, a_job, admitted, advance_clock, an_ending, claim_one, refused


@pytest.fixture
def live(store: Store) -> Store:
    store.renew(a_heartbeat(), [])
    return store


def job_of(key: str, bounds: KeyBounds | None, tenant: str = "blue", **overrides):
    return a_job(tenant, key_id=key, key_bounds=bounds, **overrides)


def test_requests_above_a_keys_rate_are_refused_and_other_keys_of_the_tenant_are_not(live):
    bounds = KeyBounds(rpm=2)
    for _ in range(2):
        admitted(live, job_of("one", bounds))
    answer = refused(live, job_of("one", bounds))
    assert (answer.reason, answer.limit, answer.max) == ("rate_limited", "key_requests_per_minute", 2)
    assert 29_000 < answer.retry_hint_ms <= 36_000
    admitted(live, job_of("two", bounds))
    admitted(live, job_of("three", None))
    advance_clock(live, 30_001)
    live.renew(a_heartbeat(), [])
    admitted(live, job_of("one", bounds))


def test_a_keys_rate_holds_over_all_tenants_for_which_the_key_acts(live):
    bounds = KeyBounds(tpm=60)
    admitted(live, job_of("gateway", bounds, "blue"))
    admitted(live, job_of("gateway", bounds, "red"))
    assert refused(live, job_of("gateway", bounds, "green")).limit == "key_tokens_per_minute"


def test_a_refused_job_uses_up_nothing_of_a_keys_rates(live):
    bounds = KeyBounds(rpm=1, tpm=30)
    admitted(live, job_of("one", bounds))
    for _ in range(5):
        refused(live, job_of("one", bounds))
    advance_clock(live, 60_001)
    live.renew(a_heartbeat(), [])
    admitted(live, job_of("one", bounds))


def test_the_bound_on_the_queued_jobs_of_a_key_counts_all_tenants_and_a_claim_makes_room(live):
    bounds = KeyBounds(max_waiting=2)
    admitted(live, job_of("one", bounds, "blue"))
    admitted(live, job_of("one", bounds, "red"))
    answer = refused(live, job_of("one", bounds, "blue"))
    assert (answer.reason, answer.limit, answer.value, answer.max) == ("tenant_queue_full", "key_waiting_jobs", 2, 2)
    admitted(live, job_of("two", None, "blue"))
    held = claim_one(live)
    admitted(live, job_of("one", bounds, "blue"))
    live.settle(an_ending(held), "w1")
    refused(live, job_of("one", bounds, "blue"))


def test_a_canceled_an_expired_and_a_superseded_job_leave_room_for_their_key(live):
    bounds = KeyBounds(max_waiting=1)
    live.cancel(admitted(live, job_of("one", bounds)))
    admitted(live, job_of("one", bounds, deadline_ms=1_000))
    advance_clock(live, 1_001)
    live.reap()
    live.renew(a_heartbeat(), [])
    admitted(live, job_of("one", bounds, supersede_digest="same"))
    admitted(live, job_of("one", bounds, supersede_digest="same"))
    refused(live, job_of("one", bounds))


def test_a_job_that_is_given_back_counts_again_for_its_key(live):
    bounds = KeyBounds(max_waiting=1)
    admitted(live, job_of("one", bounds))
    held = claim_one(live)
    live.release("w1", [held])
    refused(live, job_of("one", bounds))
    live.settle(an_ending(claim_one(live), Outcome.FAILED), "w1")
    admitted(live, job_of("one", bounds))


def test_a_job_whose_record_was_lost_counts_for_its_key_no_longer_than_its_deadline(live):
    bounds = KeyBounds(max_waiting=1)
    lost = admitted(live, job_of("one", bounds, deadline_ms=1_000))
    live.client.delete(keys.rq_job(lost))
    refused(live, job_of("one", bounds))
    advance_clock(live, 1_001)
    live.reap()
    live.reconcile("blue", MODEL)
    live.renew(a_heartbeat(), [])
    admitted(live, job_of("one", bounds))


def test_a_quote_shows_the_refusal_by_a_keys_bound(live):
    bounds = KeyBounds(rpm=1)
    job = job_of("one", bounds)
    admitted(live, job)
    sizes = {"prompt_tokens": 10, "max_tokens": 20, "deadline_ms": 60_000}
    quote = live.quote(a_job(model=job.model, **sizes, key_id="one", key_bounds=bounds))
    assert quote.refused is not None
    assert quote.refused.limit == "key_requests_per_minute"
    assert live.quote(a_job(model=job.model, **sizes)).refused is None


def test_what_a_key_has_used_disappears_with_time(live):
    admitted(live, job_of("one", KeyBounds(rpm=1, max_waiting=1)))
    assert 60_000 < live.client.pttl(keys.key_rates("one")) <= 120_000
    assert 0 < live.client.ttl(keys.key_jobs("one")) <= 90_000
