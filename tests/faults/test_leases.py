"""Tests of a lease renewal that overlaps the settle of its job, and of one that finds the lease lost."""

from collections.abc import Callable, Sequence

import pytest
from structlog.testing import capture_logs

from shared.jobs.job import Ending
from shared.jobs.states import JobState
from shared.store.replies import ClaimReply, ClaimRequest, Settled
from tests.support.builders import a_heartbeat
from tests.support.one_worker import MODEL, WORKER, FlakyStore, OneWorker, admit_job, make_worker, state_and_attempts
from workers.duties.leases import Leases


class OverlappedStore(FlakyStore):
    """A store that calls `before_answer` after it has settled jobs and before the worker gets the answer."""

    before_answer: Callable[[], object] = staticmethod(lambda: None)

    def settle_and_contend(
        self, endings: Sequence[Ending], worker: str, request: ClaimRequest
    ) -> tuple[list[Settled | Exception], ClaimReply | Exception]:
        answers = super().settle_and_contend(endings, worker, request)
        self.before_answer()
        return answers


@pytest.fixture
def store(redis_client) -> OverlappedStore:
    return OverlappedStore(redis_client)


def leases_of(worker: OneWorker) -> Leases:
    return Leases(
        worker.store,
        claimed_jobs=worker.claimed_jobs,
        engine=worker.engine,
        lease_ms=15_000,
        make_report=lambda: a_heartbeat(WORKER, slots=8, model=MODEL),
        on_drain=lambda _: None,
        on_unregistered=lambda: None,
    )


def test_a_renewal_between_a_settle_and_its_answer_does_not_report_the_job_as_lost(store):
    worker = make_worker(store)
    job_id = admit_job(store, max_tokens=2)
    recorded = []
    worker.delivery.record_usage = recorded.append
    leases, held = leases_of(worker), []

    def renew() -> None:
        held.append(worker.claimed_jobs.held())
        leases.one_pass()

    store.before_answer = renew
    with capture_logs() as logs:
        worker.run_until(worker.all_ended)
    assert [[job.id for job in claims] for claims in held] == [[job_id]]
    assert [entry for entry in logs if entry["event"] == "job.lost"] == []
    assert [usage.completion_tokens for usage in recorded] == [2]
    assert state_and_attempts(store, job_id) == (JobState.SUCCEEDED, 1)
    assert not len(worker.claimed_jobs)


def test_a_renewal_that_finds_the_lease_lost_drops_the_sequence(store):
    worker = make_worker(store)
    job_id = admit_job(store, max_tokens=1_000)
    worker.run_until(lambda: worker.engine.stats.completion_tokens > 3)
    store.release(WORKER, worker.claimed_jobs.held())
    with capture_logs() as logs:
        leases_of(worker).one_pass()
    assert [(entry["job"], entry["told_by"]) for entry in logs if entry["event"] == "job.lost"] == [(job_id, "renew")]
    while worker.engine.step():
        pass
    assert worker.engine.free_capacity().slots == 1
    assert not len(worker.claimed_jobs)
    assert state_and_attempts(store, job_id) == (JobState.QUEUED, 0)
    store.cancel(job_id)
