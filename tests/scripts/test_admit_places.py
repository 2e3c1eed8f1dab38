"""Tests of the last quarter of the places, which is kept for tenants below their share of the queued work."""

import pytest

from shared.store import keys
from tests.support.builders import MODEL, a_heartbeat, a_job, admitted, reconfigure, refused


def work(tenant: str, wt: int):
    """Return a job that costs `wt` weighted tokens."""
    return a_job(tenant, cost_mwt=1_000 * wt)


def test_a_newcomer_may_use_a_kept_place(store, settings):
    reconfigure(store, settings, max_inflight=8)
    store.renew(a_heartbeat(), [])
    for _ in range(6):
        admitted(store, a_job("blue"))
    assert refused(store, a_job("blue")).reason == "inflight_full"
    admitted(store, a_job("green"))
    assert refused(store, a_job("green")).reason == "inflight_full"
    admitted(store, a_job("red"))
    assert refused(store, a_job("white")).reason == "inflight_full"


@pytest.fixture
def nearly_full(store, settings):
    """A pool with 16 places: 4 are kept, and queued jobs of `blue` take the other 12. No rates are known."""
    reconfigure(store, settings, max_inflight=16, max_queue_size=100)
    store.renew(a_heartbeat(), [])
    for _ in range(12):
        admitted(store, work("blue", 90))
    return store


def test_the_only_tenant_with_queued_jobs_is_at_its_share_and_gets_no_kept_place(nearly_full):
    assert refused(nearly_full, work("blue", 1)).reason == "inflight_full"


def test_a_tenant_with_less_queued_work_than_its_share_may_use_a_kept_place(nearly_full):
    admitted(nearly_full, work("green", 90))
    admitted(nearly_full, work("green", 90))


def test_a_tenant_gets_only_its_share_of_the_kept_places_however_small_its_jobs_are(nearly_full):
    admitted(nearly_full, work("green", 1))
    admitted(nearly_full, work("green", 1))
    assert refused(nearly_full, work("green", 1)).reason == "inflight_full"
    admitted(nearly_full, work("red", 1))


def test_a_tenant_whose_one_job_exceeds_its_share_of_the_work_gets_no_kept_place(nearly_full):
    admitted(nearly_full, work("green", 5_000))
    assert refused(nearly_full, work("green", 1)).reason == "inflight_full"


def test_the_only_tenant_with_queued_jobs_gets_no_kept_place_even_with_one_job(store, settings):
    reconfigure(store, settings, max_inflight=16, max_queue_size=100)
    store.renew(a_heartbeat(slots=12), [])
    for _ in range(12):
        admitted(store, a_job("filler"))
    assert len(store.claim("w1", "filling", MODEL, room=12, cells_free=4_096)) == 12
    admitted(store, a_job("blue"))
    assert refused(store, a_job("blue")).reason == "inflight_full"
    admitted(store, a_job("green"))


def test_a_tenant_with_exactly_its_share_of_queued_work_gets_no_kept_place(store, settings):
    reconfigure(store, settings, max_inflight=8)
    store.renew(a_heartbeat(), [])
    for name in ("blue", "green") * 3:
        admitted(store, a_job(name))
    assert refused(store, a_job("blue")).reason == "inflight_full"
    assert refused(store, a_job("green")).reason == "inflight_full"


def test_a_tenants_weight_scales_its_share_of_the_kept_places(nearly_full):
    nearly_full.client.hset(keys.tenant("green"), mapping={"policy": "1", "policy_weight_milli": "3000"})
    nearly_full.client.zadd(keys.tenants(), {"green": 1})
    for _ in range(3):
        admitted(nearly_full, work("green", 1))
    assert refused(nearly_full, work("green", 1)).reason == "inflight_full"


def test_bounds_admission_keeps_no_place(store, settings):
    reconfigure(store, settings, max_inflight=8, admission="bounds")
    store.renew(a_heartbeat(), [])
    for _ in range(8):
        admitted(store, a_job())
    assert refused(store, a_job("green")).reason == "inflight_full"


@pytest.mark.parametrize("places", [1, 2, 3])
def test_no_place_is_kept_when_there_are_three_or_fewer(store, settings, places):
    reconfigure(store, settings, max_inflight=places)
    store.renew(a_heartbeat(), [])
    for _ in range(places):
        admitted(store, a_job())
    assert refused(store, a_job()).value == places
