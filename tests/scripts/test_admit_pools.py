"""Tests of the places that the bound on inflight jobs keeps for each live pool."""

import pytest

from shared.audit.repair import repair
from shared.jobs.outcomes import Refusal, Refused
from shared.store import keys
from shared.store.replies import Admitted
from tests.support.builders import (
    a_heartbeat,
    a_job,
    admitted,
    an_ending,
    heartbeat,
    reconfigure,
    refused,
)

#: A slow machine must not make the workers' heartbeats old while a test fills a pool.
pytestmark = pytest.mark.usefixtures("clock")

A, B = "a", "b"


def serve(store, **slots_of_model: int) -> None:
    """Send a heartbeat of one worker of each model, with this number of slots."""
    for model, slots in slots_of_model.items():
        store.renew(a_heartbeat(f"worker-of-{model}", model=model, slots=slots, cells=10**6), [])


def fill(store, model: str, *, tenants: str = "t") -> int:
    """Offer one job of each of many new tenants until one is refused; return the number of admitted jobs."""
    for count in range(2_000):
        answer = store.admit(a_job(f"{tenants}{count}", model=model))
        if isinstance(answer, Refused):
            assert answer.reason is Refusal.INFLIGHT_FULL, answer
            return count
        assert isinstance(answer, Admitted)
    raise AssertionError("nothing was refused")


def offer(store, tenant: str, model: str) -> str:
    answer = store.admit(a_job(tenant, model=model))
    return answer.reason.value if isinstance(answer, Refused) else "admitted"


def test_a_pool_that_is_flooded_by_140_tenants_leaves_the_places_of_another_pool_free(store):
    serve(store, a=16, b=16)
    assert fill(store, A) == 64
    assert offer(store, "fresh", B) == "admitted"
    assert fill(store, B, tenants="u") == 63
    assert store.overview().inflight == store.overview().max_inflight == 128


def test_a_refusal_by_a_pools_places_names_them(store):
    serve(store, a=16, b=16)
    fill(store, A)
    answer = refused(store, a_job("late", model=A))
    assert (answer.limit, answer.value, answer.max) == ("pool_inflight", 64, 64)
    assert (answer.inflight, answer.max_inflight) == (64, 128)


def test_the_bound_on_all_jobs_is_never_exceeded_and_places_are_in_proportion_to_slots(store, settings):
    reconfigure(store, settings, max_inflight=40)
    serve(store, a=1, b=3, c=4)
    assert [fill(store, model, tenants=model) for model in (A, B, "c")] == [5, 15, 20]


def test_a_pool_with_one_slot_beside_one_with_a_thousand_has_a_place(store, settings):
    reconfigure(store, settings, max_inflight=20)
    serve(store, a=1_000, b=1)
    assert fill(store, A) == 19
    assert offer(store, "fresh", B) == "admitted"
    assert offer(store, "other", B) == "inflight_full"


def test_one_place_of_each_small_pool_is_kept_even_if_the_shares_add_up_to_more_than_the_bound(store, settings):
    """The shares are 3, 1 and 1 places of 4."""
    reconfigure(store, settings, max_inflight=4)
    serve(store, a=1_000, b=1, c=1)
    assert fill(store, A) == 2
    assert [offer(store, "fresh", model) for model in (B, "c")] == ["admitted", "admitted"]
    assert offer(store, "late", A) == "inflight_full"


def test_with_fewer_places_than_pools_only_the_bound_on_all_jobs_holds(store, settings):
    reconfigure(store, settings, max_inflight=3)
    serve(store, a=4, b=4, c=4, d=4, e=4)
    assert fill(store, A) == 3
    assert offer(store, "fresh", B) == "inflight_full"


def test_one_place_admits_one_of_twenty_clients(store, settings):
    reconfigure(store, settings, max_inflight=1)
    serve(store, a=4)
    answers = [offer(store, f"t{i}", A) for i in range(20)]
    assert answers == ["admitted"] + 19 * ["inflight_full"]


def test_a_pool_that_dies_gives_its_places_back(store, settings, clock):
    reconfigure(store, settings, max_inflight=40)
    serve(store, a=16, b=16)
    assert fill(store, A) == 20
    clock.set(4_000)
    serve(store, a=16)
    clock.set(4_000)
    serve(store, a=16)
    assert fill(store, A, tenants="late") == 20


def test_the_queued_jobs_of_a_pool_that_died_still_count(store, settings, clock):
    reconfigure(store, settings, max_inflight=40)
    serve(store, a=16, b=16)
    assert fill(store, B) == 20
    for _ in range(2):
        clock.set(4_000)
        serve(store, a=16)
    assert fill(store, A, tenants="u") == 20


def test_a_place_is_free_again_when_its_job_ends(store, settings):
    reconfigure(store, settings, max_inflight=8)
    serve(store, a=4, b=4)
    assert fill(store, A) == 4
    (job,) = store.claim("worker-of-a", "one", A, room=1, cells_free=4_096)
    assert offer(store, "late", A) == "inflight_full"
    store.settle(an_ending(job.held), "worker-of-a")
    assert offer(store, "late", A) == "admitted"
    assert offer(store, "later", A) == "inflight_full"


def test_the_last_quarter_of_a_pools_places_is_kept_for_tenants_with_little_queued_there(store, settings):
    """Each pool has 8 places. Jobs that a tenant has queued elsewhere do not count against it."""
    reconfigure(store, settings, max_inflight=16)
    serve(store, a=4, b=4)
    assert [offer(store, "blue", A) for _ in range(7)] == 6 * ["admitted"] + ["inflight_full"]
    assert offer(store, "green", A) == "admitted"
    assert [offer(store, "green", B) for _ in range(7)] == 6 * ["admitted"] + ["inflight_full"]
    assert offer(store, "blue", B) == "admitted"


def test_a_pool_with_a_free_slot_and_nothing_queued_admits_a_tenant_that_has_jobs_queued_elsewhere(store, settings):
    reconfigure(store, settings, max_inflight=8)
    serve(store, a=4, b=4)
    for _ in range(3):
        admitted(store, a_job("blue", model=A))
    for count in range(4):
        assert offer(store, "blue", B) == "admitted"
        assert len(store.claim("worker-of-b", f"claim{count}", B, room=1, cells_free=4_096)) == 1


def test_superseding_a_job_needs_no_new_place_in_its_pool(store, settings):
    reconfigure(store, settings, max_inflight=8)
    serve(store, a=4, b=4)
    admitted(store, a_job("blue", model=A, supersede_digest="draft"))
    assert fill(store, A) == 3
    admitted(store, a_job("blue", model=A, supersede_digest="draft"))


def test_models_whose_names_have_one_slug_are_one_pool(store, settings):
    reconfigure(store, settings, max_inflight=8)
    heartbeat(store, "w1", model="x/y")
    heartbeat(store, "w2", model="x:y")
    serve(store, a=8)
    assert fill(store, "x/y") == 4
    assert fill(store, A, tenants="u") == 4


@pytest.mark.parametrize("field", ["waiting", "running"])
@pytest.mark.parametrize("value", ["abc", "-7", "1e300", None])
def test_a_spoiled_number_of_a_pools_jobs_lets_no_job_exceed_the_bound(store, settings, field, value):
    reconfigure(store, settings, max_inflight=8)
    serve(store, a=4, b=4)
    fill(store, A)
    if value is None:
        store.client.hdel(keys.books(A), field)
    else:
        store.client.hset(keys.books(A), field, value)
    fill(store, A, tenants="u")
    fill(store, B, tenants="v")
    assert store.overview().inflight <= 8
    repair(store, timely=False)
    assert offer(store, "late", A) == "inflight_full"
