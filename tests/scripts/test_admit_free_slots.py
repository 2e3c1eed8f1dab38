"""Tests of offers that fit into the free slots and KV cells of a pool: neither a share nor the backlog bounds them."""

import pytest

from shared.accounts.groups import Groups
from shared.accounts.tenants import Tenants
from shared.jobs.group_policy import GroupPolicy
from shared.jobs.outcomes import Refused
from shared.jobs.tenant_policy import TenantPolicy
from shared.store import keys
from tests.support.builders import MODEL, a_heartbeat, a_job, admitted, an_ending, reconfigure, refused

#: A pool that computes 70 weighted tokens a second: 8 s of work are less than one of the jobs below.
SLOW = {"mu_wtps": 70, "prefill_tps": 100, "tpot_ms": 50}


def heartbeat(store, *, slots: int = 4, cells: int = 100_000, worker: str = "w1", **facts):
    store.renew(a_heartbeat(worker, slots=slots, cells=cells, facts=facts or SLOW), [])


def large(tenant: str = "blue", **overrides):
    """Return a job of 1,050 tokens that costs 1,250 weighted tokens."""
    return a_job(
        tenant, **({"prompt_tokens": 1_000, "max_tokens": 50, "cost_mwt": None, "deadline_ms": 600_000} | overrides)
    )


def share_refusal(store, job) -> str:
    answer = store.admit(job)
    return answer.reason.value if isinstance(answer, Refused) else ""


@pytest.mark.parametrize("slots", [1, 2, 4, 8, 128])
def test_as_many_jobs_as_there_are_free_slots_are_admitted_at_once(store, slots):
    heartbeat(store, slots=slots, cells=2_000 * slots)
    for _ in range(slots):
        admitted(store, large())
    assert refused(store, large()).reason == "tenant_share_full"


@pytest.mark.parametrize("admission", ["full", "bounds"])
def test_without_rates_too_nothing_that_fits_is_refused_for_its_work(store, settings, admission):
    reconfigure(store, settings, admission=admission)
    store.renew(a_heartbeat(slots=4, cells=200_000), [])
    store.client.hset(keys.books(MODEL), "mean_mwt", 5_000)
    for _ in range(4):
        admitted(store, large(prompt_tokens=40_000, cost_mwt=40_000_000))
    assert refused(store, large(prompt_tokens=40_000, cost_mwt=40_000_000)).limit == "tenant_waiting_work"


def test_with_some_slots_in_use_the_free_ones_are_filled(store):
    heartbeat(store)
    for _ in range(3):
        admitted(store, large("green"))
    assert len(store.claim("w1", "c1", MODEL, room=4, cells_free=100_000)) == 3
    admitted(store, large("blue"))
    assert share_refusal(store, large("blue")) == "tenant_share_full"


def test_a_slot_that_has_become_free_can_be_filled_again(store):
    heartbeat(store)
    for _ in range(4):
        admitted(store, large())
    held = store.claim("w1", "c1", MODEL, room=4, cells_free=100_000)
    admitted(store, large())
    assert share_refusal(store, large()) == "tenant_share_full"
    for claimed in held[:2]:
        store.settle(an_ending(claimed.held), "w1")
    admitted(store, large())


def test_jobs_of_several_tenants_share_the_free_slots(store):
    heartbeat(store, slots=8)
    for tenant in ("blue", "green", "red", "blue", "green", "red", "blue", "green"):
        admitted(store, large(tenant))
    assert share_refusal(store, large("blue")) == "tenant_share_full"


def test_a_newcomer_gets_a_free_slot_whatever_the_backlog_is(store):
    heartbeat(store, slots=8)
    for tenant in "abcdefg":
        admitted(store, large(tenant, cost_mwt=9_000_000))
    admitted(store, large("late"))
    assert share_refusal(store, large("later")) == "backlog_full"


@pytest.mark.parametrize(("cells", "fitting"), [(1_049, 1), (2_100, 2), (3_500, 3), (4_200, 4)])
def test_what_does_not_fit_into_the_cells_is_bounded_by_its_share(store, cells, fitting):
    heartbeat(store, cells=cells)
    for _ in range(fitting):
        admitted(store, large())
    assert refused(store, large()).reason == "tenant_share_full"


def test_the_cells_of_computing_jobs_are_not_free(store):
    heartbeat(store, slots=8, cells=4_000)
    for _ in range(3):
        admitted(store, large())
    held = store.claim("w1", "c1", MODEL, room=8, cells_free=4_000)
    admitted(store, large())
    assert share_refusal(store, large()) == "tenant_share_full"
    for claimed in held:
        store.settle(an_ending(claimed.held), "w1")
    for _ in range(2):
        admitted(store, large())
    assert share_refusal(store, large()) == "tenant_share_full"


def test_the_cells_of_all_live_workers_count(store):
    for worker in ("w1", "w2"):
        heartbeat(store, slots=2, cells=2_100, worker=worker)
    for _ in range(4):
        admitted(store, large())
    assert share_refusal(store, large()) == "tenant_share_full"


def test_tenants_of_a_group_fill_free_slots_like_others(store):
    Groups(store.client).set("team", GroupPolicy())
    for tenant in ("ann", "bob"):
        Tenants(store.client).set(tenant, TenantPolicy(group="team"))
    heartbeat(store)
    for tenant in ("ann", "bob", "ann", "bob"):
        admitted(store, large(tenant))
    assert share_refusal(store, large("ann")) == "tenant_share_full"


def test_queued_batch_jobs_take_no_free_slot_from_other_jobs(store):
    heartbeat(store)
    for _ in range(4):
        admitted(store, large(priority=-1))
    for _ in range(4):
        admitted(store, large("green"))
    assert share_refusal(store, large("green")) == "tenant_share_full"


def test_a_bound_that_an_operator_has_set_holds_with_free_slots_too(store):
    Tenants(store.client).set("blue", TenantPolicy(max_waiting=2))
    heartbeat(store, slots=8)
    for _ in range(2):
        admitted(store, large())
    assert refused(store, large()).limit == "tenant_waiting_jobs"


def test_a_job_that_gets_a_free_slot_is_predicted_to_start_at_once(store):
    heartbeat(store)
    starts = [
        store.client.hget(keys.rq_job(admitted(store, large())), "penstock_predicted").split()[0] for _ in range(4)
    ]
    assert starts == [b"10000"] * 4
