"""The mark with which a stopping `penstock up` refuses new jobs, beside the one that an operator sets."""

from shared.accounts.workers import Workers


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
