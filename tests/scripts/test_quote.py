"""quote: the verdict and the end that a job would get, without any trace."""

import pytest

from shared.jobs.outcomes import Refusal
from tests.support.builders import MODEL, a_beat, a_job, admitted, contents, reconfigure, refused, seen, stat

RATES = {"mu_wtps": 1_000, "prefill_tps": 1_000, "tpot_ms": 20}


def quote(store, **spelled):
    asked = {"prompt_tokens": 10, "max_tokens": 20, "deadline_ms": 60_000}
    return store.quote("blue", MODEL, **(asked | spelled))


def test_a_quote_of_what_would_be_taken_says_cost_and_end_and_writes_nothing(store):
    store.renew(a_beat(facts=RATES), [])
    before = contents(store), stat(store, "offered_tokens")
    answer = quote(store)
    assert (contents(store), stat(store, "offered_tokens")) == before
    assert (answer.cost_mwt, answer.eta_ms, answer.refused) == (90_000, 410, None)
    job = seen(store, admitted(store, a_job(cost_mwt=None)))
    assert job.eta_at_ms is not None
    assert job.eta_at_ms - job.admitted_ms == 410


def test_a_quote_without_rates_says_no_end(store):
    store.renew(a_beat(), [])
    assert quote(store).eta_ms is None


@pytest.mark.parametrize(
    ("settings_", "asked", "reason"),
    [({"max_inflight": 1}, {}, Refusal.INFLIGHT_FULL), ({}, {"deadline_ms": 300}, Refusal.DEADLINE_UNMEETABLE)],
)
def test_a_quote_says_the_refusal_that_admit_would_give(store, settings, settings_, asked, reason):
    reconfigure(store, settings, **settings_)
    store.renew(a_beat(facts=RATES), [])
    if settings_:
        admitted(store, a_job("other"))
    answer = quote(store, **asked)
    assert answer.refused is not None
    assert (answer.refused.reason, answer.refused.answer_ms) == (reason, 410)
    assert refused(store, a_job(cost_mwt=None, **asked)).reason is reason


def test_without_a_worker_a_quote_is_the_refusal(store):
    answer = quote(store)
    assert answer.refused is not None
    assert (answer.refused.reason, answer.refused.retry_hint_ms) == (Refusal.NO_WORKER, 2_000)
