"""Tests of jobs that go back to their queue many times: what is kept of each time is bounded, and they can be read."""

import pytest

from shared.jobs.job import ClaimRef, Usage
from shared.jobs.states import JobState
from shared.store import keys
from shared.store.batches.batches import Batches, StoredBatch
from shared.store.batches.files import STORE, Files
from shared.store.batches.repeats import Repeats
from shared.store.store import Store
from shared.store.webhooks import ClaimedWebhook, Webhooks
from tests.support.answers import Answer, a_start, give_back
from tests.support.builders import a_job, admitted, advance_clock, an_ending, claim_one, heartbeat, stat, view_of

#: More values than a script can pass to a function or return from one (LUAI_MAXCSTACK is 8,000).
MORE_THAN_FIT = {f"penstock_told_{number}": "1" for number in range(4_500)}
USAGE = Usage(prompt_tokens=10, completion_tokens=1)


def types(store: Store, job_id: str) -> list[str]:
    return [fields["type"] for _, fields in store.read_events({job_id: "0"}, block_ms=100)[job_id]]


def texts(store: Store, job_id: str) -> list[str]:
    events = store.read_events({job_id: "0"}, block_ms=100)[job_id]
    return [fields["text"] for _, fields in events if fields["type"] == "token"]


def test_a_job_keeps_a_bounded_record_however_often_its_tokens_are_counted(store):
    heartbeat(store)
    job_id = admitted(store, a_job())
    lengths = []
    for _ in range(120):
        held = claim_one(store).held
        give_back(store, held)
        for _ in range(2):
            store.account([(held, USAGE)], "w1")
        record = store.client.hgetall(keys.rq_job(job_id))
        lengths.append(sum(len(name) + len(value) for name, value in record.items()))
    assert stat(store, "wasted|blue|retried") == 120 * 11
    assert lengths[119] - lengths[60] < 64
    assert len(store.client.hgetall(keys.rq_job(job_id))) < 80


def test_a_repeated_call_for_several_claims_of_a_job_counts_each_of_them_once(store):
    heartbeat(store)
    admitted(store, a_job())
    claims: list[tuple[ClaimRef, Usage]] = []
    for _ in range(20):
        held = claim_one(store).held
        give_back(store, held)
        claims.append((held, USAGE))
    for _ in range(3):
        store.account(claims, "w1")
    assert stat(store, "wasted|blue|retried") == 20 * 11


def test_the_stream_of_a_job_that_never_gets_a_word_stays_short(store):
    heartbeat(store)
    job_id = admitted(store, a_job())
    for _ in range(50):
        give_back(store, claim_one(store))
    assert types(store, job_id) == ["requeued", "started", "requeued"]
    claim_one(store)
    assert types(store, job_id) == ["requeued", "started"]


def test_tokens_without_text_are_kept_however_often_the_job_was_given_back_before(store):
    heartbeat(store)
    job_id = admitted(store, a_job())
    for _ in range(5):
        give_back(store, claim_one(store))
    job = a_start(store)
    Answer(store, job).goes_on("", [5, 6])
    for _ in range(5):
        give_back(store, job)
        job = a_start(store)
        assert job.answer == (5, 6)
    assert len(types(store, job_id)) < 6


def test_a_follower_that_reads_along_sees_each_claim(store):
    heartbeat(store)
    job_id = admitted(store, a_job())
    seen, last = [], "0"
    for _ in range(6):
        give_back(store, claim_one(store))
        events = store.read_events({job_id: last}, block_ms=100)[job_id]
        last = events[-1][0]
        seen += [fields["type"] for _, fields in events]
    claim_one(store)
    seen += [fields["type"] for _, fields in store.read_events({job_id: last}, block_ms=100)[job_id]]
    assert seen.count("requeued") == 6
    assert seen[-1] == "started"


def test_the_text_of_an_attempt_that_is_not_continued_leaves_the_stream_when_the_job_starts_anew(store):
    heartbeat(store)
    job_id = admitted(store, a_job())
    for number in range(30):
        held = claim_one(store).held
        assert texts(store, job_id) == []
        store.append([(held, f"attempt {number}", 1), (held, " and more", 2)])
        give_back(store, held)
        # Until another attempt starts, a client that asks for the events sees what the last one has shown.
        assert texts(store, job_id) == [f"attempt {number}", " and more"]
    assert len(types(store, job_id)) < 8


def test_an_answer_that_is_continued_keeps_all_of_its_text_in_the_stream(store):
    heartbeat(store)
    job_id = admitted(store, a_job(max_tokens=200))
    for number in range(40):
        job = a_start(store)
        if number % 4 == 0:
            Answer(store, job).goes_on(f"{number} ", [number])
        give_back(store, job)
    assert texts(store, job_id) == [f"{number} " for number in range(0, 40, 4)]
    assert len(types(store, job_id)) < 4 * 10
    assert a_start(store).answer == tuple(range(0, 40, 4))


@pytest.mark.parametrize("end", ["settle", "cancel", "expire"])
def test_a_job_of_an_earlier_version_with_thousands_of_marks_is_read_listed_and_ended(store, end):
    heartbeat(store)
    job_id = admitted(store, a_job(callback_url="https://example.com/hook"))
    held = claim_one(store).held
    store.client.hset(keys.rq_job(job_id), mapping=MORE_THAN_FIT)
    assert view_of(store, job_id).state is JobState.RUNNING
    assert [view.id for view in store.jobs("blue").jobs] == [job_id]
    if end == "settle":
        store.settle(an_ending(held), "w1")
    elif end == "cancel":
        give_back(store, held)
        store.cancel(job_id)
    else:
        give_back(store, held)
        advance_clock(store, 61_000)
        store.reap()
    assert view_of(store, job_id).state not in {JobState.RUNNING, JobState.QUEUED}
    webhook = Webhooks(store.client).claim("t", lease_ms=60_000)
    assert isinstance(webhook, ClaimedWebhook)


def test_records_into_which_another_program_has_written_thousands_of_fields_are_read(store):
    files, batches = Files(store.client, None), Batches(store.client)
    repeats = Repeats("digest", "body")
    assert files.add_part("file-1", "blue", 0, b"{}") is None
    store.client.hset(keys.file("file-1"), mapping=MORE_THAN_FIT)
    closed = files.close("file-1", "blue", purpose="batch", filename="", ttl_s=86_400, repeats=repeats)
    assert closed is not None
    assert files.add_part("file-2", "blue", 0, b"{}") is None
    again = files.close("file-2", "blue", purpose="batch", filename="", ttl_s=86_400, repeats=repeats)
    assert again is not None
    assert (again.id, again.home) == ("file-1", STORE)
    given = {"input_file": "file-1", "window_ms": 3_600_000, "ttl_s": 3_600, "fields": {}}
    batch = batches.create("batch-1", "blue", **given)
    assert isinstance(batch, StoredBatch)
    store.client.hset(keys.batch_record("batch-1"), mapping=MORE_THAN_FIT)
    assert isinstance(batches.create("batch-1", "blue", **given), StoredBatch)


def test_a_worker_that_has_lost_thousands_of_jobs_is_told_all_of_them(store):
    ids = [f"gone-{number}" for number in range(8_500)]
    assert store.append([(ClaimRef(job_id, "c"), "text", 1) for job_id in ids]).lost == ids


def test_a_store_that_answers_a_scan_with_thousands_of_queues_at_once_can_be_patrolled(store):
    """A store that keeps large sorted sets compact returns all of their members by the first call of ZSCAN."""
    before = store.client.config_get("zset-max-ziplist-entries")["zset-max-ziplist-entries"]
    store.client.zadd(keys.queues(), {f"t{number}.m": 10**13 + number for number in range(8_500)})
    try:
        # The set becomes compact at once. To add thousands of members to a compact set takes seconds.
        store.client.config_set("zset-max-ziplist-entries", 20_000)
        store.client.zunionstore(keys.queues(), [keys.queues()])
        assert len(store.patrol("w1", limit=64, rest_ms=3_000, pause_ms=250).queues) == 8_500
    finally:
        store.client.config_set("zset-max-ziplist-entries", before)
        store.client.zunionstore(keys.queues(), [keys.queues()])
