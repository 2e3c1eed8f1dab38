"""The mark with which a stopping `penstock up` refuses new jobs, beside the one that an operator sets."""

from shared.accounts.workers import Workers
from tests.support.builders import a_job, heartbeat, refused


def test_the_mark_of_a_stop_is_removed_by_the_next_start_although_the_stop_was_killed(store):
    Workers(store.client).drain_for_stop()
    assert Workers(store.client).is_system_draining()
    Workers(store.client).end_drain_for_stop()
    assert not Workers(store.client).is_system_draining()


def test_a_stop_keeps_the_mark_of_an_operator(store):
    workers = Workers(store.client)
    workers.drain_all()
    workers.drain_for_stop()
    workers.end_drain_for_stop()
    assert workers.is_system_draining()


def test_an_operator_who_drains_during_a_stop_keeps_the_mark(store):
    workers = Workers(store.client)
    workers.drain_for_stop()
    workers.drain_all()
    workers.end_drain_for_stop()
    assert workers.is_system_draining()


def test_an_operator_who_resumes_during_a_stop_leaves_no_mark_behind(store):
    workers = Workers(store.client)
    workers.drain_for_stop()
    workers.resume_all()
    assert not workers.is_system_draining()
    workers.drain_all()
    workers.end_drain_for_stop()
    assert workers.is_system_draining()


def test_while_every_live_worker_drains_the_overview_says_that_no_jobs_are_admitted(store):
    heartbeat(store, "w1", draining=True)
    assert store.overview().draining
    assert refused(store, a_job()).reason == "draining"
    heartbeat(store, "w2")
    assert not store.overview().draining
    heartbeat(store, "w2", draining=True)
    assert store.overview().draining
    heartbeat(store, "w1")
    assert not store.overview().draining


def test_a_worker_of_another_model_that_claims_jobs_keeps_the_system_ready(store):
    heartbeat(store, "w1", draining=True)
    heartbeat(store, "w2", model="other")
    assert not store.overview().draining


def test_the_overview_looks_at_no_more_than_64_workers(store):
    for number in range(64):
        heartbeat(store, f"w{number}", draining=True)
    assert store.overview().draining
    heartbeat(store, "w64", draining=True)
    assert not store.overview().draining
