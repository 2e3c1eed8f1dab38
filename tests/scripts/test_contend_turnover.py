"""Tests of claims in a pool whose slots become free so often that other tenants need no pauses."""

import pytest

from shared.accounts.groups import Groups
from shared.accounts.tenants import Tenants
from shared.jobs.group_policy import GroupPolicy
from shared.jobs.tenant_policy import TenantPolicy
from shared.store import keys
from tests.support.builders import MODEL, a_job, admitted, hold_clock, reconfigure
from tests.support.contending import QUANTUM_MS, QUANTUM_TOKENS, Worker, offer

pytestmark = pytest.mark.rq

SLOTS = 16
#: Nobody's queue is full.
ROOMY = {"max_inflight": 1_000, "max_queue_size": 1_000, "max_wait_ms": 3_600_000}
#: How often a slot becomes free in a busy pool.
END_EVERY_MS = 50
TEAMS = ("ann", "bob", "cyd", "dee")


@pytest.fixture
def roomy(store, settings):
    """A store in held time, with preemption, that refuses no job of these tests."""
    reconfigure(store, settings, preemption="on", quantum_ms=QUANTUM_MS, **ROOMY)
    hold_clock(store)
    return store


def a_full_worker(store, tenants=TEAMS, slots=SLOTS):
    """Return a worker whose slots are shared by some tenants, which want more of them."""
    rates = {"mu_wtps": 4 * QUANTUM_TOKENS * slots, "prefill_tps": 1_000, "tpot_ms": QUANTUM_MS // QUANTUM_TOKENS}
    worker = Worker(store, slots, cells=1_000_000, rates=rates)
    worker.beat()
    for tenant in tenants:
        offer(store, tenant, 40)
    worker.ask()
    assert len(worker.computing) == slots
    return worker


def end_some(worker, ends, tenants=TEAMS):
    """Let the oldest of the tenants' jobs end one after the other, and others get their slots."""
    for _ in range(ends):
        worker.run(END_EVERY_MS)
        worker.end(next(i for i in worker.computing if worker.claims[i].tenant in tenants))
        worker.ask()


def freed(store):
    return int(store.client.hget(keys.books(MODEL), "freed"))


def test_a_newcomer_gets_the_next_slot_that_becomes_free_and_nobody_is_paused(roomy):
    worker = a_full_worker(roomy)
    end_some(worker, 2 * SLOTS)
    assert freed(roomy) >= 6
    (quick,) = offer(roomy, "quiet")
    worker.run(END_EVERY_MS)
    answer = worker.ask()
    assert (answer.pause, answer.started) == ([], [])
    # A newcomer has the service of the least served tenant, so at most one job of each goes first.
    end_some(worker, 1 + len(TEAMS))
    assert quick in worker.computing
    assert worker.paused == {}


def test_if_no_slot_becomes_free_any_more_a_newcomer_gets_one_by_a_pause(roomy):
    """All answers are equally long here, and have begun at about the same time."""
    worker = a_full_worker(roomy)
    end_some(worker, 2 * SLOTS)
    (quick,) = offer(roomy, "quiet")
    worker.run(QUANTUM_MS // 4)
    assert worker.ask().pause == []
    worker.run(QUANTUM_MS // 4)
    answer = worker.ask()
    assert (len(answer.pause), [job.id for job in answer.started]) == (1, [quick])


def test_slots_that_a_tenant_fills_with_its_own_short_jobs_count_for_no_other(roomy):
    """The scene of a quiet tenant with short answers beside a loud one with long answers."""
    worker = a_full_worker(roomy, ["loud"])
    offer(roomy, "quiet", 60)
    worker.run(QUANTUM_MS // 2)
    assert len(worker.ask().pause) == SLOTS // 2
    for _ in range(40):
        end_some(worker, 1, ["quiet"])
        assert freed(roomy) == 0
    assert worker.tenants().count("quiet") == SLOTS // 2


@pytest.mark.parametrize("together", [False, True])
def test_the_tenants_of_a_group_count_as_one(roomy, together):
    if together:
        Groups(roomy.client).set("team", GroupPolicy())
        for tenant in TEAMS:
            Tenants(roomy.client).set(tenant, TenantPolicy(group="team"))
    worker = a_full_worker(roomy)
    end_some(worker, 2 * SLOTS)
    assert (freed(roomy) == 0) is together


def test_slots_that_were_given_by_pauses_have_not_become_free(roomy):
    worker = a_full_worker(roomy, ["loud"])
    worker.run(QUANTUM_MS // 4)
    for tenant in TEAMS:
        offer(roomy, tenant)
        assert len(worker.ask().pause) == 1
        assert freed(roomy) == 0
        worker.run(10)


def test_the_slots_of_one_worker_stand_for_those_of_the_pool(roomy):
    end_some(worker := a_full_worker(roomy), 2 * SLOTS)
    worker.ask()
    alone = freed(roomy)
    Worker(roomy, 3 * SLOTS, "w2", cells=1_000_000, rates=worker.rates).beat()
    worker.beat()
    worker.ask()
    assert freed(roomy) == 4 * alone


def test_with_few_slots_a_newcomer_does_not_wait_although_answers_are_short(roomy):
    worker = a_full_worker(roomy, TEAMS[:2], slots=2)
    for _ in range(6):
        worker.run(2 * QUANTUM_MS // 5)
        worker.end(next(iter(worker.computing)))
        worker.ask()
    assert freed(roomy) == 0


def test_a_lead_of_service_still_takes_a_slot(roomy):
    """So the bound on the difference in service holds, however often slots become free."""
    worker = a_full_worker(roomy)
    end_some(worker, 2 * SLOTS)
    offer(roomy, "rival", 8)
    lead_mwt = SLOTS * 100 * QUANTUM_MS
    for tenant in TEAMS:
        roomy.client.hincrby(keys.tenant(tenant), f"s|{MODEL}", lead_mwt)
        roomy.client.zincrby(keys.active(MODEL), lead_mwt, tenant)
    assert worker.ask().pause == []
    for row in worker.computing.values():
        row[1] = max(row[1], QUANTUM_MS if row[1] >= QUANTUM_MS // 2 else 0)
    assert freed(roomy) >= 2
    assert len(worker.ask().pause) >= 4


def test_a_batch_job_gives_its_slot_at_once_also_here(roomy):
    worker = a_full_worker(roomy)
    end_some(worker, 2 * SLOTS)
    for tenant in TEAMS:
        for job_id in roomy.client.zrange(keys.order(f"{tenant}.{MODEL}"), 0, -1):
            roomy.cancel(job_id.decode())
    worker.end(next(iter(worker.computing)))
    batch = admitted(roomy, a_job("batch", priority=-1))
    worker.ask()
    worker.run(QUANTUM_MS // 4)
    (quick,) = offer(roomy, "quiet")
    answer = worker.ask()
    assert freed(roomy) >= 2
    assert (answer.pause, [job.id for job in answer.started]) == ([batch], [quick])


def predicted_ms(store):
    return store.quote(a_job("quiet")).eta_ms


def test_admission_expects_the_wait_for_a_slot_that_becomes_free(roomy, settings):
    a_full_worker(roomy).ask()
    roomy.client.hset(keys.books(MODEL), mapping={"run_ms": 800, "mean_mwt": 90_000, "freed": 1})
    by_a_pause_ms = predicted_ms(roomy)
    roomy.client.hset(keys.books(MODEL), "freed", 2)
    when_free_ms = predicted_ms(roomy)
    reconfigure(roomy, settings, preemption="off", **ROOMY)
    assert by_a_pause_ms != when_free_ms == predicted_ms(roomy)


def test_admission_forgets_that_slots_became_free_often_if_no_worker_claims_any_more(roomy):
    """Full workers do not claim while nothing is queued, so what the last claim has counted is out of date."""
    worker = a_full_worker(roomy)
    end_some(worker, 2 * SLOTS)
    roomy.client.hset(keys.books(MODEL), mapping={"run_ms": 800, "mean_mwt": 90_000})
    when_free_ms = predicted_ms(roomy)
    worker.run(QUANTUM_MS // 2)
    worker.beat()
    assert freed(roomy) >= 6
    by_a_pause_ms = predicted_ms(roomy)
    roomy.client.hset(keys.books(MODEL), "freed", 0)
    assert when_free_ms != by_a_pause_ms == predicted_ms(roomy)


@pytest.mark.parametrize("name", ["freed", "freed_ms"])
@pytest.mark.parametrize("spoiled", ["", "x", "-5", "1e400", "nan"])
def test_a_spoiled_number_counts_as_none_and_the_next_claim_replaces_it(roomy, name, spoiled):
    worker = a_full_worker(roomy)
    end_some(worker, 2 * SLOTS)
    worker.ask()
    right = roomy.client.hget(keys.books(MODEL), name)
    roomy.client.hset(keys.books(MODEL), name, spoiled)
    assert predicted_ms(roomy)
    worker.ask()
    assert roomy.client.hget(keys.books(MODEL), name) == right
