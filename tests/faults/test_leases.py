"""A renewal and an end of the same job on their way at once: the end has the last word."""

from collections.abc import Callable, Sequence

import pytest
from structlog.testing import capture_logs

from shared.jobs.job import Ending
from shared.jobs.states import JobState
from shared.store.replies import Settled
from tests.support.builders import a_beat
from tests.support.one_worker import MODEL, WORKER, Flaky, OneWorker, ask, make, state
from workers.duties.leases import Leases


class Overtaken(Flaky):
    """A store between whose settling and its answer something else happens."""

    meanwhile: Callable[[], object] = staticmethod(lambda: None)

    def settle_many(self, endings: Sequence[Ending], worker: str) -> list[Settled | Exception]:
        answers = super().settle_many(endings, worker)
        self.meanwhile()
        return answers


@pytest.fixture
def store(redis_client) -> Overtaken:
    return Overtaken(redis_client)


def leases_of(worker: OneWorker) -> Leases:
    return Leases(
        worker.store,
        claimed_jobs=worker.claimed_jobs,
        engine=worker.engine,
        lease_ms=15_000,
        beat=lambda: a_beat(WORKER, slots=8, model=MODEL),
        on_drain=lambda _: None,
        on_stranger=lambda: None,
    )


def test_a_renewal_that_comes_between_a_settle_and_its_answer_loses_nothing(store):
    worker = make(store)
    job_id = ask(store, max_tokens=2)
    learned = []
    worker.delivery.learn = learned.append
    leases, held = leases_of(worker), []

    def renewal() -> None:
        held.append(worker.claimed_jobs.named())
        leases.one_pass()

    store.meanwhile = renewal
    with capture_logs() as logs:
        worker.go(worker.all_ended)
    assert [[job.id for job in named] for named in held] == [[job_id]]
    assert [entry for entry in logs if entry["event"] == "job.lost"] == []
    assert [usage.completion_tokens for usage in learned] == [2]
    assert state(store, job_id) == (JobState.SUCCEEDED, 1)
    assert not len(worker.claimed_jobs)


def test_a_renewal_that_finds_a_lease_lost_drops_the_sequence(store):
    worker = make(store)
    job_id = ask(store, max_tokens=1_000)
    worker.go(lambda: worker.engine.stats.completion_tokens > 3)
    store.release(WORKER, worker.claimed_jobs.named())
    with capture_logs() as logs:
        leases_of(worker).one_pass()
    assert [(entry["job"], entry["told_by"]) for entry in logs if entry["event"] == "job.lost"] == [(job_id, "renew")]
    while worker.engine.step():
        pass
    assert worker.engine.room().slots == 1
    assert not len(worker.claimed_jobs)
    assert state(store, job_id) == (JobState.QUEUED, 0)
    store.cancel(job_id)
