"""Tests of models that a worker would load for the jobs that wait for them: admission counts the time until then."""

import pytest

from shared.store import keys
from tests.support.builders import MODEL, a_heartbeat, a_job, admitted, an_ending, claim_one, refused

RATES = {"mu_wtps": 1_000, "prefill_tps": 1_000, "tpot_ms": 20}


def loadable(store, claims_in_ms, **facts):
    """Send a heartbeat of a worker that does not hold the model, and claims its jobs only then."""
    store.renew(a_heartbeat("loadable", slots=4, cells=100_000, facts={"claims_in_ms": claims_in_ms, **facts}), [])


@pytest.fixture
def proven(store):
    """A store whose model has served a job lately: admission then believes its rates."""
    store.renew(a_heartbeat(slots=4, cells=100_000, facts=RATES), [])
    admitted(store, a_job())
    store.settle(an_ending(claim_one(store).held), "w1")
    store.farewell("w1", MODEL)
    return store


def predicted_start_ms(store, job_id):
    return int(store.client.hget(keys.rq_job(job_id), "penstock_predicted").split()[0])


def test_a_job_is_admitted_if_its_deadline_allows_for_the_load(proven):
    loadable(proven, 20_000, **RATES)
    job_id = admitted(proven, a_job(prompt_tokens=100, deadline_ms=30_000))
    assert 20_000 <= predicted_start_ms(proven, job_id) <= 21_000


def test_a_job_that_the_load_would_make_late_is_refused_until_the_model_is_loaded(proven):
    loadable(proven, 20_000, **RATES)
    refusal = refused(proven, a_job(prompt_tokens=100, deadline_ms=15_000))
    assert (refusal.reason, refusal.limit) == ("deadline_unmeetable", "predicted_ms")
    assert not refusal.hopeless
    proven.renew(a_heartbeat(slots=4, cells=100_000, facts=RATES), [])
    job_id = admitted(proven, a_job(prompt_tokens=100, deadline_ms=15_000))
    assert predicted_start_ms(proven, job_id) < 1_000


def test_a_deadline_that_nobody_named_is_extended_by_the_load_although_no_rate_is_known(store):
    loadable(store, 90_000)
    job = a_job(deadline_ms=30_000, start_within_ms=10_000, longest_deadline_ms=600_000)
    job_id = admitted(store, job)
    patience = store.client.hmget(keys.rq_job(job_id), "penstock_patience_ms", "penstock_start_within_ms")
    assert [int(value) for value in patience] == [120_000, 100_000]


def test_a_draining_worker_that_held_the_model_leaves_the_time_of_the_next_load(proven):
    loadable(proven, 20_000, **RATES)
    proven.renew(a_heartbeat(slots=4, cells=100_000, facts=RATES, draining=True), [])
    assert predicted_start_ms(proven, admitted(proven, a_job(deadline_ms=60_000))) >= 20_000


def test_a_model_that_is_not_loaded_is_not_the_fastest_worker_of_its_pool(proven):
    loadable(proven, 20_000, **RATES)
    assert proven.client.hget(keys.books(MODEL), "fast_worker") != "loadable"
