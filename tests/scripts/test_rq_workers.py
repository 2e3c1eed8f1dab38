"""Tests that RQ's own readers show a worker with the queues that it serves and one job that it runs."""

import pytest
from rq import Queue, Worker
from rq.serializers import JSONSerializer

from shared.jobs.job import ClaimedJob
from shared.store.store import Store
from tests.support.builders import MODEL, a_heartbeat, a_job, admitted, advance_clock, an_ending

pytestmark = pytest.mark.rq


def registered_worker_with_a_job(store: Store) -> tuple[Worker, ClaimedJob]:
    """Register the worker w1 with RQ, let it claim a job, and report that it holds the job."""
    store.renew(a_heartbeat(), [])
    registered = Worker([], name="w1", connection=store.client, serializer=JSONSerializer)
    registered.register_birth()
    admitted(store, a_job())
    (claimed,) = store.claim("w1", "c1", MODEL, room=1, cells_free=4_096)
    store.renew(a_heartbeat(), [claimed.held])
    return registered, claimed


def current_job_id(store: Store) -> str | None:
    """Return what RQ reads now; a `Worker` object caches what it has read."""
    rq_worker = Worker.find_by_key("rq:worker:w1", store.client, serializer=JSONSerializer)
    assert rq_worker is not None
    return rq_worker.get_current_job_id()


def test_rq_shows_the_queues_of_a_registered_worker_and_the_first_job_that_it_holds(store):
    registered, claimed = registered_worker_with_a_job(store)
    queue = Queue(f"blue.{MODEL}", connection=store.client, serializer=JSONSerializer)
    assert [worker.name for worker in Worker.all(queue=queue, serializer=JSONSerializer)] == ["w1"]
    assert current_job_id(store) == claimed.id
    (execution,) = store.client.smembers("rq:worker:w1:executions")
    record = {
        name.decode(): value.decode() for name, value in store.client.hgetall(b"rq:execution:" + execution).items()
    }
    assert (record["job_id"], record["id"], record["worker_name"]) == (claimed.id, claimed.token, "w1")
    store.settle(an_ending(claimed.held), "w1")
    store.renew(a_heartbeat(), [])
    assert current_job_id(store) is None
    registered.register_death()
    store.reconcile("blue", MODEL)
    assert Worker.count(queue=queue) == 0


def test_a_worker_that_says_farewell_leaves_no_execution(store):
    _, claimed = registered_worker_with_a_job(store)
    assert store.client.exists("rq:worker:w1:executions")
    store.settle(an_ending(claimed.held), "w1")
    store.farewell("w1", MODEL)
    assert not store.client.exists("rq:worker:w1:executions")


def test_rq_shows_a_worker_again_that_was_silent_for_more_than_a_minute(store):
    registered_worker_with_a_job(store)
    advance_clock(store, 61_000)
    store.reap()
    assert Worker.all(connection=store.client, serializer=JSONSerializer) == []
    store.renew(a_heartbeat(), [])
    assert [one.name for one in Worker.all(connection=store.client, serializer=JSONSerializer)] == ["w1"]
    store.reap()
