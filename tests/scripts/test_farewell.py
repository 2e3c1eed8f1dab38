"""Tests of the script `farewell`, after which a stopped worker no longer counts as live."""

from tests.support.builders import a_heartbeat, a_job, admitted, refused


def test_a_worker_no_longer_counts_as_live_after_its_farewell(store):
    store.renew(a_heartbeat("w1"), [])
    store.renew(a_heartbeat("w2", slots=8), [])
    store.farewell("w2", "m")
    assert [worker.name for worker in store.snapshot().workers] == ["w1"]
    admitted(store, a_job())
    store.farewell("w1", "m")
    assert refused(store, a_job()).reason == "no_worker"


def test_a_second_farewell_changes_nothing(store):
    store.renew(a_heartbeat(), [])
    store.farewell("w1", "m")
    store.farewell("w1", "m")
    assert store.snapshot().workers == []
