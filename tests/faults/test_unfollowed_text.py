"""Tests of when a worker writes text to the store, in one thread, with a real store, the sim and a manual clock.

The worker has two slots, and each generates a word every 50 ms.
"""

import itertools
from collections.abc import Sequence
from typing import Any

import pytest

from shared.store.replies import Appended
from shared.store.store import Store
from tests.support.one_worker import WORKER, FlakyStore, OneWorker, admit_job, make_worker
from workers.duties.claimed_jobs import OLDER_DOOR_S


class WatchedStore(FlakyStore):
    """The real store, which keeps the texts of each append: the job's id, the text, and when it was written."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.worker: OneWorker | None = None
        self.appended: list[tuple[float, dict[str, str]]] = []

    def append(self, chunks: Sequence[Any], *arguments: Any, **named: Any) -> Appended:
        assert self.worker is not None
        self.appended.append((self.worker.clock.monotonic(), {held.id: text for held, text, _ in chunks}))
        return super().append(chunks, *arguments, **named)

    def writes(self, job_id: str) -> list[tuple[float, str]]:
        """Return the texts of a job that were written, with their times."""
        return [(moment, texts[job_id]) for moment, texts in self.appended if texts.get(job_id)]


@pytest.fixture
def store(redis_client) -> WatchedStore:
    return WatchedStore(redis_client)


@pytest.fixture
def worker(store: WatchedStore) -> OneWorker:
    store.worker = make_worker(store, PENSTOCK_MAX_BATCH_SIZE="2", PENSTOCK_SIM_PREFILL_TPS="1e6")
    return store.worker


def has_words(worker: OneWorker, count: int) -> Any:
    """Return a function that returns whether the worker has generated this many words."""
    return lambda: worker.engine.stats.completion_tokens >= count


def streamed(store: Store, job_id: str) -> list[tuple[str, str]]:
    """Return the ids and the texts of the job's events."""
    events = store.read_events({job_id: "0"}, block_ms=1)[job_id]
    return [(event_id, fields["text"]) for event_id, fields in events if fields["type"] == "token"]


def ring(store: Store, worker: OneWorker) -> None:
    """Do what the worker's doorbell duty does when it rings."""
    for job_id in store.wait_for_work(WORKER, "", timeout_s=1).followed:
        worker.delivery.note_follower(job_id)


def test_a_short_job_that_nobody_follows_writes_its_result_and_no_text(store, worker):
    job_id = admit_job(store, max_tokens=8, followed=0)
    worker.run_until(worker.all_ended)
    assert not store.appended
    assert len(store.touch(job_id).text.split()) == 8


def test_jobs_that_nobody_follows_call_the_store_about_their_text_at_most_once_a_second_together(store, worker):
    ids = [admit_job(store, tenant, max_tokens=100, followed=0) for tenant in "ab"]
    worker.run_until(worker.all_ended)
    moments = [moment for moment, _ in store.appended]
    assert 4 <= len(moments) <= 5
    assert min(after - before for before, after in itertools.pairwise(moments)) >= 1
    assert all(texts.keys() == set(ids) for _, texts in store.appended)


def test_a_late_follower_gets_all_text_so_far_and_then_the_rest_as_it_comes(store, worker):
    job_id, other = (admit_job(store, tenant, max_tokens=60, followed=0) for tenant in "ab")
    worker.run_until(has_words(worker, 60))
    written = streamed(store, job_id)
    assert len(written) == len(streamed(store, other)) == 1
    store.follow(job_id)
    ring(store, worker)
    worker.job_loop.one_pass()
    so_far = streamed(store, job_id)
    assert so_far[0] == written[0]
    assert len("".join(text for _, text in so_far).split()) >= 29
    worker.run_until(worker.all_ended)
    events = streamed(store, job_id)
    assert events[:2] == so_far
    assert len(events) >= 2 + 20
    assert "".join(text for _, text in events) == store.touch(job_id).text
    assert len(store.writes(other)) <= 3


def test_a_job_that_is_followed_from_its_admission_writes_its_first_word_at_once(store, worker):
    job_id = admit_job(store, max_tokens=20, followed=1)
    worker.run_until(has_words(worker, 1))
    worker.job_loop.one_pass()
    assert [len(text.split()) for _, text in streamed(store, job_id)] == [1]
    worker.run_until(worker.all_ended)
    assert "".join(text for _, text in streamed(store, job_id)) == store.touch(job_id).text


def test_a_follower_that_comes_before_the_answer_to_the_claim_is_remembered(store, worker):
    job_id = admit_job(store, max_tokens=20, followed=0)
    worker.delivery.note_follower(job_id)
    worker.run_until(worker.all_ended)
    assert len(store.writes(job_id)) >= 15


def test_a_follower_whose_ring_was_lost_is_heard_of_within_a_second(store, worker):
    job_id = admit_job(store, max_tokens=60, followed=0)
    worker.run_until(has_words(worker, 5))
    store.follow(job_id)
    began_s = worker.clock.monotonic()
    worker.run_until(lambda: bool(store.writes(job_id)))
    assert worker.clock.monotonic() - began_s <= 1.1
    worker.run_until(worker.all_ended)


def test_while_a_door_of_an_earlier_version_admits_jobs_all_text_counts_as_followed(store, worker):
    admit_job(store, max_tokens=2, followed=None)
    worker.run_until(worker.all_ended)
    job_id = admit_job(store, max_tokens=8, followed=0)
    worker.claimer.expect_work()
    worker.run_until(worker.all_ended)
    assert len(store.writes(job_id)) >= 6
    worker.clock.advance(OLDER_DOOR_S)
    job_id = admit_job(store, max_tokens=8, followed=0)
    worker.claimer.expect_work()
    worker.run_until(worker.all_ended)
    assert store.writes(job_id) == []


def test_a_job_with_a_start_deadline_shows_in_the_store_that_it_has_begun(store, worker):
    job_id = admit_job(store, max_tokens=60, followed=0, start_within_ms=30_000)
    worker.run_until(has_words(worker, 2))
    worker.job_loop.one_pass()
    assert len(streamed(store, job_id)) == 1
    store.release(WORKER, worker.claimed_jobs.held())
    assert store.client.hget(f"rq:job:{job_id}", "penstock_start_within_ms") == b"0"
    worker.run_until(worker.all_ended)
