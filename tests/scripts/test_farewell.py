"""farewell: a worker that stops is off the books at once."""

from tests.support.builders import a_beat, a_job, admitted, refused


def test_a_worker_that_said_farewell_no_longer_counts_as_live(store):
    store.renew(a_beat("w1"), [])
    store.renew(a_beat("w2", slots=8), [])
    store.farewell("w2", "m")
    assert [worker.name for worker in store.snapshot().workers] == ["w1"]
    admitted(store, a_job())
    store.farewell("w1", "m")
    assert refused(store, a_job()).reason == "no_worker"


def test_saying_farewell_twice_changes_nothing(store):
    store.renew(a_beat(), [])
    store.farewell("w1", "m")
    store.farewell("w1", "m")
    assert store.snapshot().workers == []
