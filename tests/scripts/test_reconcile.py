"""Tests that one pass undoes the changes that other programs made to RQ's keys, so that the invariants hold again."""

from concurrent.futures import ThreadPoolExecutor

import pytest
from rq import Queue, SimpleWorker
from rq.job import Job
from rq.registry import FailedJobRegistry
from rq.serializers import JSONSerializer

from shared.accounts.groups import Groups
from shared.accounts.tenants import Tenants
from shared.audit.invariants import find_breaches
from shared.jobs.group_policy import GroupPolicy
from shared.jobs.outcomes import Outcome
from shared.jobs.states import JobState
from shared.jobs.tenant_policy import TenantPolicy
from shared.store import keys
from shared.store.store import Store
from tests.support.builders import MODEL, a_heartbeat, a_job, admitted, an_ending, contents, reconfigure, stat

pytestmark = [pytest.mark.rq, pytest.mark.passing_time]


@pytest.fixture
def busy(store: Store):
    """The store, the one running job of blue, and the ids of its four jobs; the other three are queued."""
    store.renew(a_heartbeat(), [])
    ids = [admitted(store, a_job()) for _ in range(4)]
    (claimed,) = store.claim("w1", "c1", MODEL, room=1, cells_free=4_096)
    assert claimed.id == ids[0]
    return store, claimed, ids


def queue_of(store):
    return Queue(f"blue.{MODEL}", connection=store.client, serializer=JSONSerializer)


def job_of(store, job_id):
    return Job.fetch(job_id, connection=store.client, serializer=JSONSerializer)


def test_an_untouched_queue_needs_no_repair(busy):
    store, *_ = busy
    assert store.reconcile("blue", MODEL) == 0


@pytest.mark.no_prefix
def test_the_jobs_of_an_emptied_rq_queue_are_forgotten_and_their_places_are_freed(busy):
    store, _, ids = busy
    queue_of(store).empty()
    assert store.reconcile("blue", MODEL) > 0
    assert find_breaches(store.client) == []
    assert store.snapshot().inflight == 1
    assert [store.touch(job_id) for job_id in ids[1:]] == [None] * 3


def test_a_deleted_queued_job_is_forgotten_and_the_others_keep_their_order(busy):
    store, _, ids = busy
    job_of(store, ids[2]).delete()
    store.reconcile("blue", MODEL)
    assert find_breaches(store.client) == []
    assert queue_of(store).get_job_ids() == [ids[1], ids[3]]


def _queued_work_mwt(store) -> tuple[int, int]:
    """Return the queued work by the pool's record and by the tenant's record, in thousandths of a weighted token."""
    pool = store.client.hget(keys.books(MODEL), "waiting_mwt")
    own = store.client.hget(keys.tenant("blue"), f"b|{MODEL}")
    return int(pool or 0), int(own or 0)


@pytest.mark.no_prefix
def test_the_sums_of_queued_work_match_the_remaining_jobs(busy):
    store, _, ids = busy
    store.renew(a_heartbeat(), [])
    admitted(store, a_job(tenant="red", cost_mwt=7_000))
    cost_mwt = a_job().cost_mwt
    assert _queued_work_mwt(store) == (3 * cost_mwt + 7_000, 3 * cost_mwt)
    job_of(store, ids[2]).delete()
    store.reconcile("blue", MODEL)
    assert _queued_work_mwt(store) == (2 * cost_mwt + 7_000, 2 * cost_mwt)
    queue_of(store).empty()
    store.reconcile("blue", MODEL)
    assert _queued_work_mwt(store) == (7_000, 0)


def test_a_deleted_tenant_record_is_rebuilt_from_the_tenants_queues(busy):
    store, *_ = busy
    admitted(store, a_job(tenant="red", cost_mwt=7_000))
    before, weights = _queued_work_mwt(store), store.client.hget(keys.books(MODEL), "weight_milli")
    store.client.delete(keys.tenant("blue"))
    store.reconcile("blue", MODEL)
    assert _queued_work_mwt(store) == before
    assert store.client.hget(keys.books(MODEL), "weight_milli") == weights
    assert find_breaches(store.client) == []


def test_a_running_job_whose_hash_was_deleted_by_hand_frees_its_place(busy):
    store, claimed, _ = busy
    store.client.delete(f"rq:job:{claimed.id}")
    store.reconcile("blue", MODEL)
    assert find_breaches(store.client) == []
    assert store.settle(an_ending(claimed.held), "w1").answer == "gone"


def test_a_pools_running_count_is_corrected_when_a_running_jobs_hash_was_deleted(busy):
    """Other jobs run in this pool and in another one. A pool whose count is too high would never count as idle."""
    store, claimed, _ = busy
    (other,) = store.claim("w1", "c2", MODEL, room=1, cells_free=4_096)
    store.renew(a_heartbeat("w2", model="other"), [])
    admitted(store, a_job("green", model="other"))
    assert len(store.claim("w2", "c3", "other", room=1, cells_free=4_096)) == 1
    store.client.delete(keys.rq_job(claimed.id))
    store.reconcile("blue", MODEL)
    assert store.client.hget(keys.books(MODEL), "running") == b"1"
    waiting = [raw.decode() for raw in store.client.lrange(f"rq:queue:blue.{MODEL}", 0, -1)]
    store.client.delete(*(keys.rq_job(job_id) for job_id in (other.id, *waiting)))
    store.reconcile("blue", MODEL)
    assert store.client.hget(keys.books(MODEL), "running") == b"0"
    assert store.client.hget(keys.books("other"), "running") == b"1"


def test_a_tenant_record_deleted_while_its_jobs_run_is_rebuilt_with_a_ttl(store):
    store.renew(a_heartbeat(), [])
    admitted(store, a_job())
    (claimed,) = store.claim("w1", "c1", MODEL, room=1, cells_free=4_096)
    store.client.delete(keys.tenant("blue"))
    store.reconcile("blue", MODEL)
    store.settle(an_ending(claimed.held), "w1")
    store.reconcile("blue", MODEL)
    assert find_breaches(store.client) == []


def test_an_ended_job_requeued_through_rq_stays_ended(busy):
    store, claimed, ids = busy
    store.settle(an_ending(claimed.held, Outcome.FAILED, code="engine_error"), "w1")
    FailedJobRegistry(f"blue.{MODEL}", connection=store.client, serializer=JSONSerializer).requeue(claimed.id)
    store.reconcile("blue", MODEL)
    assert find_breaches(store.client) == []
    view = store.touch(claimed.id)
    assert view is not None
    assert view.state is JobState.FAILED
    assert queue_of(store).get_job_ids() == ids[1:]


@pytest.mark.no_prefix
def test_a_stock_rq_worker_cannot_run_penstock_jobs_and_they_stay_queued(busy):
    store, _, ids = busy
    queue = queue_of(store)
    SimpleWorker([queue], connection=store.client, serializer=JSONSerializer, name="stock").work(burst=True)
    assert queue.get_job_ids() == []
    store.reconcile("blue", MODEL)
    for key in store.client.scan_iter("rq:*stock*"):
        store.client.delete(key)
    assert find_breaches(store.client) == []
    assert queue.get_job_ids() == ids[1:]
    assert [job.id for job in store.claim("w1", "c2", MODEL, room=3, cells_free=4_096)] == ids[1:]


def test_an_rq_list_with_reordered_and_foreign_entries_is_restored(busy):
    store, _, ids = busy
    store.client.rpush(f"rq:queue:blue.{MODEL}", "foreign")
    store.client.lrem(f"rq:queue:blue.{MODEL}", 1, ids[1])
    store.client.rpush(f"rq:queue:blue.{MODEL}", ids[1])
    assert store.reconcile("blue", MODEL) >= 2
    assert find_breaches(store.client) == []
    assert queue_of(store).get_job_ids() == ids[1:]


def test_one_pass_restores_rqs_list_after_jobs_of_a_long_queue_were_deleted(store, settings):
    reconfigure(store, settings, max_queue_size=200, max_inflight=200)
    store.renew(a_heartbeat(), [])
    ids = [admitted(store, a_job()) for _ in range(150)]
    for job_id in (ids[0], ids[70]):
        job_of(store, job_id).delete()
    store.reconcile("blue", MODEL)
    assert find_breaches(store.client) == []
    assert queue_of(store).get_job_ids() == [job_id for job_id in ids if job_id not in {ids[0], ids[70]}]
    assert store.reconcile("blue", MODEL) == 0


@pytest.mark.parametrize("field", ["waiting", "waiting_tokens", "waiting_mwt", "running"])
def test_a_corrupted_sum_is_recomputed(busy, field):
    store, *_ = busy
    store.client.hincrby(keys.tenant("blue"), field, 7)
    assert store.reconcile("blue", MODEL) == 1
    assert find_breaches(store.client) == []
    store.client.hset(keys.tenant("blue"), field, "many")
    assert store.reconcile("blue", MODEL) == 1
    assert find_breaches(store.client) == []


def test_a_corrupted_sum_of_an_empty_queue_is_reset(store):
    store.renew(a_heartbeat(), [])
    store.cancel(admitted(store, a_job()))
    store.client.hset(keys.tenant("blue"), "waiting", "many")
    assert store.reconcile("blue", MODEL) == 1
    admitted(store, a_job())


def test_a_running_job_missing_from_rqs_started_registry_is_put_back(busy):
    store, claimed, _ = busy
    store.client.delete(f"rq:wip:blue.{MODEL}")
    store.client.hset(keys.rq_job(claimed.id), "status", "failed")
    assert store.reconcile("blue", MODEL) >= 1
    assert find_breaches(store.client) == []


@pytest.mark.parametrize("field", ["cost_mwt", "prompt_tokens", "max_tokens", "bytes"])
def test_a_fraction_in_a_jobs_record_does_not_stop_the_recount(busy, field):
    store, _, ids = busy
    store.client.hset(keys.rq_job(ids[2]), f"penstock_{field}", "1.5")
    store.client.hset(keys.tenant("blue"), "waiting", 7)
    assert store.reconcile("blue", MODEL) >= 1
    assert find_breaches(store.client) == []


@pytest.mark.no_prefix
def test_concurrent_reconciles_repair_each_fault_once(busy):
    store, _, ids = busy
    queue_of(store).empty()
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda _: store.reconcile("blue", MODEL), range(16)))
    assert find_breaches(store.client) == []
    assert stat(store, "ended|forgotten") == len(ids) - 1


def test_reconcile_works_when_memory_is_full(busy, memory_is_full):
    store, *_ = busy
    store.client.delete(f"rq:queue:blue.{MODEL}")
    with memory_is_full():
        assert store.reconcile("blue", MODEL) >= 3
    assert find_breaches(store.client) == []


def test_reconcile_does_not_change_the_queues_of_other_tenants_and_models(busy):
    store, *_ = busy
    store.renew(a_heartbeat("w2", model="n"), [])
    admitted(store, a_job("green"))
    admitted(store, a_job(model="n"))
    store.client.delete(f"rq:queue:blue.{MODEL}")
    before = {key: value for key, value in contents(store).items() if f"blue.{MODEL}" not in key}
    store.reconcile("blue", MODEL)
    after = {key: value for key, value in contents(store).items() if f"blue.{MODEL}" not in key}
    assert after == before | {"rq:queues": after["rq:queues"]}
    step = store.patrol("w1", limit=64, rest_ms=3_000, pause_ms=250)
    assert set(step.queues) == {("blue", MODEL), ("blue", "n"), ("green", MODEL)}


def test_sums_left_wrong_by_a_claim_that_met_a_job_without_a_record_are_repaired(busy):
    """Nothing else is wrong with the queue, and a pass that is not thorough repairs the sums too."""
    store, _, ids = busy
    store.client.delete(keys.rq_job(ids[1]))
    assert [job.id for job in store.claim("w1", "c2", MODEL, room=1, cells_free=4_096)] == [ids[2]]
    assert [breach.invariant for breach in find_breaches(store.client)] == [3, 3, 3, 3]
    assert store.reconcile("blue", MODEL, thorough=False) == 7
    assert find_breaches(store.client) == []


def test_ids_that_stand_several_times_in_rqs_list_are_brought_into_order_at_once(store):
    store.renew(a_heartbeat(), [])
    first, second = (admitted(store, a_job(deadline_ms=ms)) for ms in (30_000, 60_000))
    store.client.delete(f"rq:queue:blue.{MODEL}")
    store.client.rpush(f"rq:queue:blue.{MODEL}", first, first, first, second, second, second)
    store.reconcile("blue", MODEL)
    assert store.client.lrange(f"rq:queue:blue.{MODEL}", 0, -1) == [first.encode(), second.encode()]


def test_a_pool_that_another_program_added_to_the_lists_of_a_groups_tenant_gets_no_sets(busy):
    store, *_ = busy
    Groups(store.client).set("team", GroupPolicy(weight=2))
    Tenants(store.client).set("blue", TenantPolicy(group="team"))
    store.client.sadd(keys.lists("blue"), "odd name:x.y z")
    assert store.reconcile("blue", MODEL, thorough=True) > 0
    assert store.client.smembers(keys.lists("blue")) == {MODEL.encode()}
    assert store.client.keys("*odd name*") == []
    assert find_breaches(store.client) == []
