"""Tests of kill -9 of a worker at every critical point of a job (faults 1 to 5 and 8)."""

from shared.jobs.outcomes import EndCode
from shared.jobs.states import JobState
from tests.support.processes import Stage, wait_for

MAX_ATTEMPTS = 2


def assert_succeeded_once(stage: Stage, ids: list[str], *, attempts: int) -> None:
    """Assert that each job succeeded with this many attempts, has one whole answer, and was counted once."""
    for view in stage.ended(*ids):
        assert (view.state, view.attempts) == (JobState.SUCCEEDED, attempts), view
        assert view.text is not None
        assert len(view.text.split()) == view.max_tokens
        assert stage.event_types(view.id).count("ended") == 1
    assert stage.stat("ended|succeeded") == len(ids)
    assert stage.inflight() == 0


def test_eight_running_jobs_of_a_killed_worker_succeed_on_another_worker(stage):
    first, second = stage.worker(), stage.worker(PENSTOCK_SIM_DECODE_TPS="10000")
    second.pause()
    # They last for ten seconds.
    ids = [stage.admit(tenant, max_tokens=1_000) for tenant in "abcdabcd"]
    stage.wait_until_running(*ids)
    first.kill()
    second.resume()
    assert_succeeded_once(stage, ids, attempts=2)
    assert second.alive


def test_a_job_that_met_its_start_deadline_is_retried_after_that_deadline_and_succeeds(stage):
    """The first token came within the four seconds allowed. They are over when the job is started again."""
    first = stage.worker()
    job_id = stage.admit(start_within_ms=4_000, max_tokens=1_500)
    stage.wait_for_text(job_id)
    admitted_ms = stage.job(job_id).admitted_ms
    wait_for(lambda: stage.job(job_id).now_ms > admitted_ms + 4_000, "four seconds")
    first.kill()
    stage.worker(PENSTOCK_SIM_DECODE_TPS="10000")
    assert_succeeded_once(stage, [job_id], attempts=2)


def test_a_job_whose_worker_dies_right_after_the_claim_runs_on_another_worker(stage):
    first = stage.worker(PENSTOCK_FAIL_AT="after_claim")
    job_id = stage.admit()
    assert first.exit_code() == -9
    stage.worker()
    assert_succeeded_once(stage, [job_id], attempts=2)


def test_a_job_whose_worker_dies_before_the_first_token_ends_once(stage):
    first = stage.worker(PENSTOCK_FAIL_AT="before_first_token")
    job_id = stage.admit()
    assert first.exit_code() == -9
    assert stage.event_types(job_id) == ["started"]
    stage.worker()
    assert_succeeded_once(stage, [job_id], attempts=2)


def test_a_job_whose_worker_dies_before_the_settle_runs_again_and_has_one_result(stage):
    first = stage.worker(PENSTOCK_FAIL_AT="before_settle")
    job_id = stage.admit()
    assert first.exit_code() == -9
    assert stage.job(job_id).state is JobState.RUNNING
    stage.worker()
    assert_succeeded_once(stage, [job_id], attempts=2)


def test_a_job_whose_worker_dies_after_the_settle_does_not_run_again(stage):
    first = stage.worker(PENSTOCK_FAIL_AT="after_settle")
    job_id = stage.admit()
    assert first.exit_code() == -9
    assert_succeeded_once(stage, [job_id], attempts=1)
    stage.worker()
    stage.ended(stage.admit())
    assert stage.job(job_id).attempts == 1
    assert stage.event_types(job_id).count("started") == 1


def test_only_the_job_that_kills_its_workers_fails_as_poison(stage):
    poison = "poison"
    deadly = {"PENSTOCK_FAIL_AT": f"after_submit@{poison}", "PENSTOCK_MAX_ATTEMPTS": str(MAX_ATTEMPTS)}
    worker = stage.worker(**deadly)
    other_ids = [stage.admit(tenant, max_tokens=100) for tenant in "abc"]
    stage.admit("d", id=poison, max_tokens=100)
    # Two crashes of all four jobs, one of two, and then the attempts of the one.
    crashes = 0
    while not stage.job(poison).ended_ms and crashes <= 2 + 1 + MAX_ATTEMPTS:
        assert worker.exit_code() == -9
        crashes += 1
        worker = stage.worker(**deadly)
        wait_for(
            lambda worker=worker: stage.job(poison).ended_ms or not worker.alive, "another crash, or the end of the job"
        )
    assert MAX_ATTEMPTS <= crashes <= 2 + 1 + MAX_ATTEMPTS
    view, *others = stage.ended(poison, *other_ids)
    assert (view.state, view.code) == (JobState.FAILED, EndCode.POISON)
    assert {other.state for other in others} == {JobState.SUCCEEDED}
    wait_for(lambda: worker.alive, "a worker that is not killed")
