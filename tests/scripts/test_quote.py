"""Tests of the script `quote`, which returns the verdict and the eta that a job would get, and writes nothing."""

import pytest

from shared.jobs.outcomes import Refusal
from tests.support.builders import (
    a_heartbeat,
    a_job,
    admitted,
    an_ending,
    claim_one,
    contents,
    reconfigure,
    refused,
    stat,
    view_of,
)

RATES = {"mu_wtps": 1_000, "prefill_tps": 1_000, "tpot_ms": 20}


def quote(store, **overrides):
    fields = {"prompt_tokens": 10, "max_tokens": 20, "deadline_ms": 60_000}
    return store.quote(a_job(**(fields | overrides)))


def test_a_quote_of_an_admissible_job_returns_its_cost_and_eta_and_writes_nothing(store):
    store.renew(a_heartbeat(facts=RATES), [])
    before = contents(store), stat(store, "offered_tokens")
    answer = quote(store)
    assert (contents(store), stat(store, "offered_tokens")) == before
    assert (answer.cost_mwt, answer.eta_ms, answer.refused) == (90_000, 410, None)
    # Without known lengths of answers, the tenant is expected to use all 20 tokens.
    assert answer.eta_interval_ms == (410, 410)
    job = view_of(store, admitted(store, a_job(cost_mwt=None)))
    assert job.eta_at_ms is not None
    assert job.eta_at_ms - job.admitted_ms == 410


def test_a_quote_without_known_rates_has_no_eta(store):
    store.renew(a_heartbeat(), [])
    assert (quote(store).eta_ms, quote(store).eta_interval_ms) == (None, None)


@pytest.mark.parametrize(
    ("overrides", "fields", "reason"),
    [({"max_inflight": 1}, {}, Refusal.INFLIGHT_FULL), ({}, {"deadline_ms": 300}, Refusal.DEADLINE_UNMEETABLE)],
)
def test_a_quote_returns_the_refusal_that_admit_would_return(store, settings, overrides, fields, reason):
    reconfigure(store, settings, **overrides)
    store.renew(a_heartbeat(facts=RATES), [])
    admitted(store, a_job(cost_mwt=None))
    store.settle(an_ending(claim_one(store).held), "w1")
    if overrides:
        admitted(store, a_job("other"))
    answer = quote(store, **fields)
    assert answer.refused is not None
    assert (answer.refused.reason, answer.refused.answer_ms) == (reason, 410)
    assert refused(store, a_job(cost_mwt=None, **fields)).reason is reason


def test_a_quote_without_a_live_worker_returns_the_refusal(store):
    answer = quote(store)
    assert answer.refused is not None
    assert (answer.refused.reason, answer.refused.retry_hint_ms) == (Refusal.NO_WORKER, 2_000)


def test_a_private_job_is_quoted_the_refusal_of_a_pool_that_is_not_local(store):
    store.renew(a_heartbeat(facts=RATES), [])
    answer = quote(store, private=True)
    assert answer.refused is not None
    assert answer.refused.reason is Refusal.NO_SUITABLE_POOL
    assert refused(store, a_job(private=True)).reason is Refusal.NO_SUITABLE_POOL
