"""Tests of the script `append`, which adds new text to the event streams of the jobs that the sender still holds."""

from shared.jobs.answer_ids import AnswerIds
from shared.jobs.job import ClaimRef
from shared.store import keys
from shared.store.replies import Appended
from tests.support.answers import FINGERPRINT, PARTIAL
from tests.support.builders import a_job, admitted, an_ending, claim, claim_one, heartbeat, pass_time


def texts(store, job_id: str) -> list[tuple[str, str]]:
    events = store.read_events({job_id: "0"}, block_ms=100)[job_id]
    return [(fields["text"], fields["tokens"]) for _, fields in events if fields["type"] == "token"]


def test_one_append_adds_the_text_of_several_jobs(store):
    heartbeat(store)
    for _ in range(2):
        admitted(store, a_job())
    one, two = claim(store, room=2)
    assert store.append([(one.held, "Once ", 1), (two.held, "Zwölf", 2), (one.held, "upon", 3)]).lost == []
    assert texts(store, one.id) == [("Once ", "1"), ("upon", "3")]
    assert texts(store, two.id) == [("Zwölf", "2")]


def test_an_append_without_text_does_nothing(store):
    assert store.append([]).lost == []


def test_a_worker_that_lost_a_job_adds_no_text_to_it(store):
    heartbeat(store)
    admitted(store, a_job())
    stale = claim_one(store).held
    pass_time(store, 16_500)
    store.reap()
    fresh = claim_one(store, "w2").held
    assert store.append([(stale, "ghost", 1), (fresh, "true", 1), (ClaimRef("nobody", "c"), "x", 1)]).lost == [
        stale.id,
        "nobody",
    ]
    assert texts(store, fresh.id) == [("true", "1")]


def test_an_ended_job_gets_no_more_text(store):
    heartbeat(store)
    admitted(store, a_job())
    held = claim_one(store).held
    store.settle(an_ending(held), "w1")
    assert store.append([(held, "late", 21)]).lost == [held.id]
    assert texts(store, held.id) == []


def test_a_deleted_event_stream_is_not_recreated_without_a_ttl(store):
    heartbeat(store)
    admitted(store, a_job())
    held = claim_one(store).held
    store.client.delete(keys.events(held.id))
    assert store.append([(held, "text", 1)]).lost == []
    assert store.client.exists(keys.events(held.id)) == 0


def test_a_stream_key_of_the_wrong_type_does_not_hold_back_the_text_of_other_jobs(store):
    heartbeat(store)
    for _ in range(2):
        admitted(store, a_job())
    one, two = claim(store, room=2)
    store.client.set(keys.events(one.id), "x", ex=60)
    assert store.append([(one.held, "a", 1), (two.held, "b", 1)]).lost == []
    assert texts(store, two.id) == [("b", "1")]


def test_append_works_when_memory_is_full(store, memory_is_full):
    heartbeat(store)
    admitted(store, a_job())
    held = claim_one(store).held
    with memory_is_full():
        assert store.append([(held, "text", 1)]).lost == []
    assert texts(store, held.id) == [("text", "1")]


def test_a_repeated_call_adds_no_text_twice_and_stores_its_ids_all_the_same(store):
    heartbeat(store)
    admitted(store, a_job())
    held = claim_one(store).held
    store.append([(held, "Once ", 1)])
    packed = AnswerIds(held.token, FINGERPRINT).add([7], 1)
    assert store.append([(held, "Once ", 1)], {held.id: packed}, repeated=True).lost == []
    assert texts(store, held.id) == [("Once ", "1")]
    assert store.client.get(PARTIAL + held.id) == packed.ids + packed.seal.encode()


def test_the_worker_is_told_which_of_its_jobs_are_followed_if_it_asks(store):
    heartbeat(store)
    for followed in (0, 1, 0, None):
        admitted(store, a_job(followed=followed))
    jobs = claim(store, room=4)
    chunks = [(job.held, "", 0) for job in jobs]
    (one,) = (job.id for job in jobs if job.is_followed)
    assert store.append(chunks) == Appended([], [])
    assert store.append(chunks, asks=True) == Appended([], [one])
    late = next(job.id for job in jobs if job.is_followed is False)
    store.follow(late)
    assert set(store.append(chunks, asks=True).followed) == {one, late}


def test_asking_for_followers_leaves_the_text_and_the_ids_of_a_job_as_they_are(store):
    heartbeat(store)
    admitted(store, a_job())
    held = claim_one(store).held
    packed = AnswerIds(held.token, FINGERPRINT).add([7], 1)
    store.append([(held, "Once ", 1)], {held.id: packed})
    store.append([(held, "", 1)], asks=True)
    assert texts(store, held.id) == [("Once ", "1")]
    assert store.client.get(PARTIAL + held.id) == packed.ids + packed.seal.encode()
