"""Tests that a job that was put back continues after its tokens, and that it starts anew if they cannot be trusted."""

import pytest

from shared.jobs.outcomes import Outcome
from shared.store import keys
from tests.support.answers import FINGERPRINT, PARTIAL, Answer, a_start, give_back
from tests.support.builders import (
    MODEL,
    a_job,
    admitted,
    an_ending,
    claim,
    heartbeat,
    pass_time,
    reconfigure,
    view_of,
)


def events(store, job_id):
    return [fields for _, fields in store.read_events({job_id: "0"}, block_ms=100)[job_id]]


def begun(store, *ids, text="Once", **fields):
    """Return a running job with these tokens of its answer."""
    heartbeat(store)
    admitted(store, a_job(**fields))
    job = a_start(store)
    Answer(store, job).goes_on(text, ids)
    return job


def assert_started_anew(store, job):
    assert job.answer == ()
    assert events(store, job.id)[-1] == {"type": "started", "attempt": str(job.attempt)}
    assert store.client.exists(PARTIAL + job.id) == 0


def test_a_job_that_is_given_back_continues_after_its_tokens(store):
    job = begun(store, 5, 70_000, 4_000_000_000)
    give_back(store, job)
    other = a_start(store, "w2")
    assert (other.id, other.answer) == (job.id, (5, 70_000, 4_000_000_000))
    assert events(store, job.id)[-1] == {"type": "started", "attempt": "1", "resumed": "1"}
    Answer(store, other).goes_on(" more", [8])
    assert [fields["tokens"] for fields in events(store, job.id) if fields["type"] == "token"] == ["3", "4"]


def test_a_job_whose_lease_ended_continues_after_its_tokens(store):
    begun(store, 5, 6)
    pass_time(store, 16_500)
    assert store.reap().requeued == 1
    other = a_start(store, "w2")
    assert (other.answer, other.attempt) == ((5, 6), 2)


def test_tokens_without_text_are_kept_too_and_make_no_event(store):
    job = begun(store, 5, 6, text="")
    give_back(store, job)
    assert a_start(store).answer == (5, 6)
    assert [fields["type"] for fields in events(store, job.id)] == ["started", "requeued", "started"]


def test_the_tokens_of_all_attempts_are_kept(store):
    job, expected = begun(store, 1, 2), [1, 2]
    for attempt in range(6):
        give_back(store, job)
        job = a_start(store)
        assert job.answer == tuple(expected)
        if attempt % 2:
            # Every other attempt dies before it has generated anything.
            Answer(store, job).goes_on("x", [10 + attempt])
            expected.append(10 + attempt)


def test_a_repeated_append_changes_nothing(store):
    heartbeat(store)
    admitted(store, a_job())
    job = a_start(store)
    answer = Answer(store, job)
    answer.goes_on("a", [1])
    packed = answer.ids.add([2, 3], 3)
    for _ in range(3):
        store.append([(job.held, "b", 3)], {job.id: packed})
    give_back(store, job)
    assert a_start(store).answer == (1, 2, 3)


def test_a_repeated_claim_returns_the_same_tokens(store):
    give_back(store, begun(store, 1, 2))
    heartbeat(store, facts={"fingerprint": FINGERPRINT})
    answers = [store.claim("w1", "again", MODEL, room=1, cells_free=4_096)[0].answer for _ in range(3)]
    assert answers == [(1, 2)] * 3


def test_an_answer_that_is_told_from_its_beginning_again_is_stored_again(store):
    """An engine that computes the tokens one by one again reports them again, with those that follow."""
    give_back(store, begun(store, 1, 2))
    job = a_start(store)
    answer = Answer(store, job)
    packed = answer.ids.add([1, 2, 3], 3)
    store.append([(job.held, "c", 3)], {job.id: packed})
    give_back(store, job)
    assert a_start(store).answer == (1, 2, 3)


@pytest.mark.parametrize("fingerprint", ["another model", ""])
def test_a_worker_with_another_model_starts_anew(store, fingerprint):
    give_back(store, begun(store, 1, 2))
    job = a_start(store, "w2", fingerprint=fingerprint)
    assert_started_anew(store, job)
    # Its own, shorter answer is kept, and nothing of the longer one before.
    Answer(store, job, fingerprint=fingerprint).goes_on("x", [9])
    give_back(store, job, "w2")
    assert a_start(store, "w3", fingerprint=fingerprint).answer == ((9,) if fingerprint else ())


SPOILS = {
    "deleted": lambda client, key: client.delete(key),
    "another type": lambda client, key: (client.delete(key), client.rpush(key, "x")),
    "a list beside": lambda client, key: client.set(key, "abc"),
    "empty": lambda client, key: client.set(key, ""),
    "one id changed": lambda client, key: client.setrange(key, 4, b"\x07"),
    "one id less": lambda client, key: client.set(key, client.get(key)[4:]),
    "the end cut off": lambda client, key: client.set(key, client.get(key)[:-1]),
    "something added": lambda client, key: client.append(key, "1234"),
    "another seal": lambda client, key: client.setrange(key, 8, b"0" * 16),
}


@pytest.mark.parametrize("spoil", SPOILS.values(), ids=SPOILS)
@pytest.mark.parametrize("when", ["running", "queued"])
def test_a_job_whose_ids_were_spoiled_starts_anew_and_its_followers_are_told(store, spoil, when):
    job = begun(store, 1, 2)
    if when == "running":
        spoil(store.client, PARTIAL + job.id)
    give_back(store, job)
    if when == "queued":
        spoil(store.client, PARTIAL + job.id)
    job = a_start(store)
    assert_started_anew(store, job)
    Answer(store, job).goes_on("Then", [3])
    give_back(store, job)
    assert a_start(store).answer == (3,)


@pytest.mark.parametrize("spoil", [SPOILS["deleted"], SPOILS["another type"]])
def test_ids_that_a_worker_adds_to_a_spoiled_key_are_not_used(store, spoil):
    heartbeat(store)
    admitted(store, a_job())
    job = a_start(store)
    answer = Answer(store, job)
    answer.goes_on("a", [1, 2])
    spoil(store.client, PARTIAL + job.id)
    answer.goes_on("b", [3])
    answer.goes_on("c", [4])
    give_back(store, job)
    assert_started_anew(store, a_start(store))


def test_a_job_that_lost_an_append_starts_anew(store):
    heartbeat(store)
    admitted(store, a_job())
    job = a_start(store)
    answer = Answer(store, job)
    answer.goes_on("a", [1])
    answer.goes_on("b", [2], stored=False)
    answer.goes_on("c", [3])
    give_back(store, job)
    assert_started_anew(store, a_start(store))


def test_a_job_whose_last_text_came_without_ids_starts_anew(store):
    job = begun(store, 1)
    store.append([(job.held, "the end", 4)])
    give_back(store, job)
    assert_started_anew(store, a_start(store))


@pytest.mark.parametrize("when", ["before its next text", "before it is put back", "after it was put back"])
def test_a_job_whose_event_stream_was_deleted_starts_anew(store, when):
    """Otherwise its followers would get the end of the text without its beginning."""
    heartbeat(store)
    admitted(store, a_job())
    job = a_start(store)
    answer = Answer(store, job)
    answer.goes_on("a", [1])
    if when == "before its next text":
        store.client.delete(keys.events(job.id))
        answer.goes_on("b", [2])
    elif when == "before it is put back":
        store.client.delete(keys.events(job.id))
    give_back(store, job)
    if when == "after it was put back":
        store.client.delete(keys.events(job.id))
    assert_started_anew(store, a_start(store))


def test_ids_that_an_earlier_version_left_behind_are_not_used(store):
    """Its scripts run a job again without touching the ids, and put it back without saying whose they are."""
    job = begun(store, 1, 2)
    give_back(store, job)
    store.client.hdel(f"rq:job:{job.id}", "penstock_kept_claim", "penstock_kept_tokens")
    assert_started_anew(store, a_start(store))


def test_a_worker_that_lost_the_job_stores_no_ids(store):
    job = begun(store, 1, 2)
    give_back(store, job)
    a_start(store, "w2")
    assert store.append([(job.held, "x", 3)], {job.id: Answer(store, job).ids.add([1, 2, 3], 3)}).lost == [job.id]
    pass_time(store, 16_500)
    store.reap()
    assert a_start(store, "w3").answer == (1, 2)


@pytest.mark.parametrize("end", ["success", "cancel", "poison", "deadline", "forgotten"])
def test_an_ended_job_leaves_no_ids(store, settings, end):
    reconfigure(store, settings, max_attempts=1)
    job = begun(store, 1, 2, deadline_ms=20_000)
    if end == "success":
        store.settle(an_ending(job.held), "w1")
    elif end == "cancel":
        give_back(store, job)
        store.cancel(job.id)
    elif end == "poison":
        pass_time(store, 16_500)
        store.reap()
    elif end == "deadline":
        give_back(store, job)
        pass_time(store, 21_000)
        store.reap()
    else:
        give_back(store, job)
        store.client.delete(f"rq:job:{job.id}")
        heartbeat(store)
        assert claim(store) == []
        # The record said what was reserved for the job, so only a recount can give that back.
        store.reconcile("blue", MODEL)
    assert store.client.exists(PARTIAL + job.id) == 0
    assert store.client.zcard(keys.inflight()) == 0


def test_a_job_that_has_generated_a_token_has_no_start_deadline_any_more(store):
    job = begun(store, 1, text="", deadline_ms=600_000, start_within_ms=5_000)
    give_back(store, job)
    pass_time(store, 6_000)
    assert store.reap().moved == 0
    assert a_start(store).start_in_ms is None


def test_appending_ids_works_when_memory_is_full(store, memory_is_full):
    heartbeat(store)
    admitted(store, a_job())
    job = a_start(store)
    with memory_is_full():
        Answer(store, job).goes_on("text", [1, 2])
    give_back(store, job)
    assert a_start(store).answer == (1, 2)


def test_a_resumed_job_succeeds_with_its_whole_text(store):
    give_back(store, begun(store, 1, 2))
    job = a_start(store)
    store.settle(an_ending(job.held, Outcome.SUCCEEDED, text="Once more"), "w1")
    assert view_of(store, job.id).text == "Once more"
