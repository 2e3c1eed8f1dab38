"""Tests of the script `append`, which adds new text to the event streams of the jobs that the sender still holds."""

from shared.jobs.job import ClaimRef
from shared.store import keys
from tests.support.builders import a_job, admitted, an_ending, claim, claim_one, heartbeat, pass_time


def texts(store, job_id: str) -> list[tuple[str, str]]:
    events = store.read_events({job_id: "0"}, block_ms=100)[job_id]
    return [(fields["text"], fields["tokens"]) for _, fields in events if fields["type"] == "token"]


def test_one_append_adds_the_text_of_several_jobs(store):
    heartbeat(store)
    for _ in range(2):
        admitted(store, a_job())
    one, two = claim(store, room=2)
    assert store.append([(one.held, "Once ", 1), (two.held, "Zwölf", 2), (one.held, "upon", 3)]) == []
    assert texts(store, one.id) == [("Once ", "1"), ("upon", "3")]
    assert texts(store, two.id) == [("Zwölf", "2")]


def test_an_append_without_text_does_nothing(store):
    assert store.append([]) == []


def test_a_worker_that_lost_a_job_adds_no_text_to_it(store):
    heartbeat(store)
    admitted(store, a_job())
    stale = claim_one(store).held
    pass_time(store, 16_500)
    store.reap()
    fresh = claim_one(store, "w2").held
    assert store.append([(stale, "ghost", 1), (fresh, "true", 1), (ClaimRef("nobody", "c"), "x", 1)]) == [
        stale.id,
        "nobody",
    ]
    assert texts(store, fresh.id) == [("true", "1")]


def test_an_ended_job_gets_no_more_text(store):
    heartbeat(store)
    admitted(store, a_job())
    held = claim_one(store).held
    store.settle(an_ending(held), "w1")
    assert store.append([(held, "late", 21)]) == [held.id]
    assert texts(store, held.id) == []


def test_a_deleted_event_stream_is_not_recreated_without_a_ttl(store):
    heartbeat(store)
    admitted(store, a_job())
    held = claim_one(store).held
    store.client.delete(keys.events(held.id))
    assert store.append([(held, "text", 1)]) == []
    assert store.client.exists(keys.events(held.id)) == 0


def test_a_stream_key_of_the_wrong_type_does_not_hold_back_the_text_of_other_jobs(store):
    heartbeat(store)
    for _ in range(2):
        admitted(store, a_job())
    one, two = claim(store, room=2)
    store.client.set(keys.events(one.id), "x", ex=60)
    assert store.append([(one.held, "a", 1), (two.held, "b", 1)]) == []
    assert texts(store, two.id) == [("b", "1")]


def test_append_works_when_memory_is_full(store, memory_is_full):
    heartbeat(store)
    admitted(store, a_job())
    held = claim_one(store).held
    with memory_is_full():
        assert store.append([(held, "text", 1)]) == []
    assert texts(store, held.id) == [("text", "1")]
