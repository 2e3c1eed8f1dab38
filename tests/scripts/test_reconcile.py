"""What foreign hands do to RQ's keys is put right within one pass, and the invariants hold again."""

import pytest
from rq import Queue, SimpleWorker
from rq.job import Job
from rq.registry import FailedJobRegistry
from rq.serializers import JSONSerializer

from shared.invariants import breaches
from shared.outcomes import Outcome
from shared.states import JobState
from shared.store import Store
from tests.support.builders import MODEL, a_beat, a_job, admitted, an_ending


@pytest.fixture
def busy(store: Store):
    """Three waiting jobs of blue and one running."""
    store.renew(a_beat(), [])
    ids = [admitted(store, a_job()) for _ in range(4)]
    (claimed,) = store.claim("w1", "c1", MODEL, room=1, cells_free=4_096)
    assert claimed.id == ids[0]
    return store, claimed, ids


def queue_of(store):
    return Queue(f"blue.{MODEL}", connection=store.client, serializer=JSONSerializer)


def job_of(store, job_id):
    return Job.fetch(job_id, connection=store.client, serializer=JSONSerializer)


def test_a_queue_that_nobody_touched_needs_no_repair(busy):
    store, *_ = busy
    assert store.reconcile("blue", MODEL) == 0


def test_an_emptied_rq_queue_forgets_its_jobs_and_frees_their_places(busy):
    store, _, ids = busy
    queue_of(store).empty()
    assert store.reconcile("blue", MODEL) > 0
    assert breaches(store.client) == []
    assert store.snapshot().inflight == 1
    assert [store.touch(job_id) for job_id in ids[1:]] == [None] * 3


def test_a_deleted_waiting_job_is_forgotten_and_the_others_keep_their_order(busy):
    store, _, ids = busy
    job_of(store, ids[2]).delete()
    store.reconcile("blue", MODEL)
    assert breaches(store.client) == []
    assert queue_of(store).get_job_ids() == [ids[1], ids[3]]


def test_a_running_job_whose_hash_was_deleted_by_hand_frees_its_place(busy):
    store, claimed, _ = busy
    store.client.delete(f"rq:job:{claimed.id}")
    store.reconcile("blue", MODEL)
    assert breaches(store.client) == []
    assert store.settle(an_ending(claimed.held), "w1").answer == "gone"


def test_a_requeued_ended_job_stays_ended(busy):
    store, claimed, ids = busy
    store.settle(an_ending(claimed.held, Outcome.FAILED, code="engine_error"), "w1")
    FailedJobRegistry(f"blue.{MODEL}", connection=store.client, serializer=JSONSerializer).requeue(claimed.id)
    store.reconcile("blue", MODEL)
    assert breaches(store.client) == []
    view = store.touch(claimed.id)
    assert view is not None
    assert view.state is JobState.FAILED
    assert queue_of(store).get_job_ids() == ids[1:]


def test_a_stock_rq_worker_fails_to_run_our_jobs_and_they_wait_on(busy):
    store, _, ids = busy
    queue = queue_of(store)
    SimpleWorker([queue], connection=store.client, serializer=JSONSerializer, name="stock").work(burst=True)
    assert queue.get_job_ids() == []
    store.reconcile("blue", MODEL)
    for key in store.client.scan_iter("rq:*stock*"):
        store.client.delete(key)
    assert breaches(store.client) == []
    assert queue.get_job_ids() == ids[1:]
    assert [job.id for job in store.claim("w1", "c2", MODEL, room=3, cells_free=4_096)] == ids[1:]


def test_shuffled_and_foreign_entries_of_a_list_are_put_in_order(busy):
    store, _, ids = busy
    store.client.rpush(f"rq:queue:blue.{MODEL}", "stranger")
    store.client.lrem(f"rq:queue:blue.{MODEL}", 1, ids[1])
    store.client.rpush(f"rq:queue:blue.{MODEL}", ids[1])
    assert store.reconcile("blue", MODEL) >= 2
    assert breaches(store.client) == []
    assert queue_of(store).get_job_ids() == ids[1:]
