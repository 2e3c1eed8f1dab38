"""Tests of models that a worker would load for the jobs that wait for them: admission counts the time until then."""

import pytest

from shared.cli.commands.doctor import _advice
from shared.clock import RealClock
from shared.settings.settings import Settings
from shared.store import keys
from shared.store.replies import Admitted
from tests.support.builders import MODEL, a_heartbeat, a_job, admitted, an_ending, claim_one, refused
from web.runtime.model_pools import ModelPools
from workers.swapping.failures import Failure, end_waiting
from workers.swapping.loadable import Loadable

RATES = {"mu_wtps": 1_000, "prefill_tps": 1_000, "tpot_ms": 20}


def loadable(store, claims_in_ms, *, model=MODEL, slots=4, **facts):
    """Send a heartbeat of a worker that does not hold the model, and claims its jobs only then."""
    name = "loadable" if model == MODEL else f"loadable-{model}"
    facts = {"claims_in_ms": claims_in_ms, **facts}
    store.renew(a_heartbeat(name, model=model, slots=slots, cells=100_000, facts=facts), [])


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


def test_a_worker_of_three_models_has_the_slots_and_the_rate_of_the_one_that_it_holds(proven):
    proven.renew(a_heartbeat(slots=4, cells=100_000, facts=RATES), [])
    for name in ("second", "third"):
        loadable(proven, 20_000, model=name, **RATES)
    snapshot = proven.snapshot()
    assert (snapshot.live_slots, snapshot.capacity_wtps) == (4, 1_000)
    assert snapshot.pools["second"].slots == 0
    assert proven.overview().slots == 4


def test_a_model_that_is_being_loaded_has_its_slots(proven):
    loadable(proven, 2_000, loading=1, **RATES)
    assert proven.snapshot().live_slots == 4
    loadable(proven, 20_000, loading=0, **RATES)
    assert proven.snapshot().live_slots == 0


def test_models_that_are_not_loaded_do_not_raise_the_automatic_bounds(store):
    store.renew(a_heartbeat(slots=32, cells=100_000), [])
    for number in range(8):
        loadable(store, 20_000, model=f"m{number}", slots=32)
    assert store.snapshot().max_inflight == 128


def test_the_places_of_a_loaded_model_leave_some_to_those_that_could_be_loaded(store):
    store.renew(a_heartbeat(slots=4, cells=100_000), [])
    loadable(store, 0, model="second")
    taken = 0
    while isinstance(store.admit(a_job(tenant=f"t{taken}")), Admitted):
        taken += 1
    assert taken <= 32
    assert admitted(store, a_job(model="second"))


def test_the_pool_of_a_model_that_can_be_loaded_has_the_slots_and_rates_that_the_model_will_have(proven):
    loadable(proven, 20_000, **RATES | {"mu_wtps": 250})
    pool = proven.client.hmget(keys.books(MODEL), "loadable_slots", "mu_wtps")
    assert [float(value) for value in pool] == [4, 250]
    proven.renew(a_heartbeat(slots=4, cells=100_000, facts=RATES), [])
    assert proven.client.hget(keys.books(MODEL), "loadable_slots") is None


@pytest.mark.parametrize("named", [{"deadline_ms": 15_000}, {"deadline_ms": 60_000, "start_within_ms": 15_000}])
def test_the_first_job_of_an_idle_model_is_refused_if_the_load_takes_longer_than_it_may_wait(store, named):
    # Its rates are not believed after a minute without a job, or are unknown, but the time of the load is known.
    loadable(store, 20_000, **RATES)
    job = a_job(prompt_tokens=100, start_named="start_within_ms" in named, **named)
    refusal = refused(store, job)
    limit = "predicted_start_ms" if "start_within_ms" in named else "predicted_ms"
    assert (refusal.reason, refusal.limit, refusal.hopeless) == ("deadline_unmeetable", limit, False)
    # After the hint, the model that was loaded for the refused job meanwhile is loaded in time.
    assert 5_000 <= refusal.retry_hint_ms <= 20_000
    assert store.renew(a_heartbeat("loadable"), []).load_refusals == 1


def test_the_first_job_of_an_idle_model_without_rates_is_refused_by_the_load_alone(store):
    loadable(store, 20_000)
    assert refused(store, a_job(deadline_ms=15_000)).reason == "deadline_unmeetable"
    assert admitted(store, a_job(deadline_ms=25_000))


def test_a_door_knows_the_facts_of_the_64_models_that_were_heard_last(store):
    for number in range(70):
        loadable(store, 1_000, model=f"m{number:02}", n_ctx=100 + number, pooling="mean")
    directory = ModelPools(store, Settings(), RealClock()).directory()
    live = {name: model for name, model in directory.models.items() if model.live}
    assert set(live) == {f"m{number:02}" for number in range(6, 70)}
    assert all((model.loaded, model.purpose) == (False, "embed") for model in live.values())
    assert "64 models are live, or more" in " ".join(_advice(store.client, store.snapshot(), Settings()))


FAILURE = {"load_failures": 2, "load_retry_in_ms": 10_000, "load_error": "its file could not be used"}


def test_while_a_model_cannot_be_loaded_its_jobs_are_refused_until_the_next_try(store):
    loadable(store, 30_000, **FAILURE)
    refusal = refused(store, a_job())
    assert (refusal.reason, refusal.limit, refusal.value) == ("load_failed", "load_failures", 2)
    assert 9_000 <= refusal.retry_hint_ms <= 12_000
    pool = store.snapshot().pools[MODEL]
    assert (pool.reason, pool.load_failures, pool.load_error) == ("load_failed", 2, "its file could not be used")
    assert 9_000 <= pool.load_retry_in_ms <= 10_000


@pytest.mark.parametrize("how", ["loaded", "replaced"])
def test_a_failure_is_forgotten_when_the_model_is_loaded_or_its_file_is_replaced(store, how):
    loadable(store, 30_000, **FAILURE)
    if how == "loaded":
        store.renew(a_heartbeat(slots=4, cells=100_000), [])
    else:
        loadable(store, 1_000, load_failures=0)
    assert admitted(store, a_job())
    assert store.snapshot().pools[MODEL].load_failures == 0


def test_a_worker_that_has_not_failed_does_not_forget_the_failure_of_another(store):
    loadable(store, 30_000, **FAILURE)
    store.renew(a_heartbeat("other", facts={"claims_in_ms": 1_000}), [])
    assert refused(store, a_job()).reason == "load_failed"


def test_jobs_that_wait_for_a_model_that_cannot_be_loaded_end(store):
    waiting = Loadable(MODEL, 2.0, 4, 100_000, {}, worker="loadable")
    loadable(store, 1_000)
    ids = [admitted(store, a_job()) for _ in range(6)]
    assert end_waiting(store, waiting, Failure(2, 0.0, 10.0, "why")) == 6
    for job_id in ids:
        ended = store.client.hmget(keys.rq_job(job_id), "penstock_state", "penstock_code", "penstock_stage")
        assert ended == [b"failed", b"load_failed", b"queue"]
    assert end_waiting(store, waiting, Failure(2, 0.0, 10.0, "why")) == 0
