"""What RQ's own readers are told of a worker: the queues it serves and one job that it runs."""

from rq import Queue, Worker
from rq.serializers import JSONSerializer

from tests.support.builders import MODEL, a_beat, a_job, admitted, an_ending


def test_rq_is_shown_the_first_held_job_of_a_registered_worker_and_which_queues_it_serves(store):
    store.renew(a_beat(), [])
    registered = Worker([], name="w1", connection=store.client, serializer=JSONSerializer)
    registered.register_birth()
    admitted(store, a_job())
    (claimed,) = store.claim("w1", "c1", MODEL, room=1, cells_free=4_096)
    store.renew(a_beat(), [claimed.held])
    queue = Queue(f"blue.{MODEL}", connection=store.client, serializer=JSONSerializer)
    assert [worker.name for worker in Worker.all(queue=queue, serializer=JSONSerializer)] == ["w1"]
    seen = Worker.find_by_key("rq:worker:w1", store.client, serializer=JSONSerializer)
    assert seen is not None
    assert seen.get_current_job_id() == claimed.id
    store.settle(an_ending(claimed.held), "w1")
    store.renew(a_beat(), [])
    assert seen.get_current_job_id() is None
    registered.register_death()
    store.reconcile("blue", MODEL)
    assert Worker.count(queue=queue) == 0
