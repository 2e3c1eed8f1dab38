"""append: new text goes to the streams of the jobs that its sender still holds."""

from shared.jobs.job import Held
from shared.store import keys
from tests.support.builders import a_job, admitted, an_ending, beat, claim, claim_one, pass_time


def texts(store, job_id: str) -> list[tuple[str, str]]:
    events = store.read_events({job_id: "0"}, block_ms=100)[job_id]
    return [(fields["text"], fields["tokens"]) for _, fields in events if fields["type"] == "token"]


def test_the_text_of_several_jobs_goes_out_in_one_call(store):
    beat(store)
    for _ in range(2):
        admitted(store, a_job())
    one, two = claim(store, room=2)
    assert store.append([(one.held, "Once ", 1), (two.held, "Zwölf", 2), (one.held, "upon", 3)]) == []
    assert texts(store, one.id) == [("Once ", "1"), ("upon", "3")]
    assert texts(store, two.id) == [("Zwölf", "2")]


def test_nothing_to_append_is_fine(store):
    assert store.append([]) == []


def test_who_no_longer_holds_a_job_adds_nothing_to_it(store):
    beat(store)
    admitted(store, a_job())
    stale = claim_one(store).held
    pass_time(store, 16_500)
    store.reap()
    fresh = claim_one(store, "w2").held
    assert store.append([(stale, "ghost", 1), (fresh, "true", 1), (Held("nobody", "c"), "x", 1)]) == [
        stale.id,
        "nobody",
    ]
    assert texts(store, fresh.id) == [("true", "1")]


def test_an_ended_job_gets_no_more_text(store):
    beat(store)
    admitted(store, a_job())
    held = claim_one(store).held
    store.settle(an_ending(held), "w1")
    assert store.append([(held, "late", 21)]) == [held.id]
    assert texts(store, held.id) == []


def test_a_stream_that_somebody_removed_is_not_made_again_without_a_ttl(store):
    beat(store)
    admitted(store, a_job())
    held = claim_one(store).held
    store.client.delete(keys.events(held.id))
    assert store.append([(held, "text", 1)]) == []
    assert store.client.exists(keys.events(held.id)) == 0


def test_a_stream_of_another_type_does_not_keep_the_others_text_back(store):
    beat(store)
    for _ in range(2):
        admitted(store, a_job())
    one, two = claim(store, room=2)
    store.client.set(keys.events(one.id), "x", ex=60)
    assert store.append([(one.held, "a", 1), (two.held, "b", 1)]) == []
    assert texts(store, two.id) == [("b", "1")]


def test_text_goes_out_without_memory(store, memory_is_full):
    beat(store)
    admitted(store, a_job())
    held = claim_one(store).held
    with memory_is_full():
        assert store.append([(held, "text", 1)]) == []
    assert texts(store, held.id) == [("text", "1")]
