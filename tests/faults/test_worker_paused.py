"""Tests of suspended workers, of engines that hang, and of steps longer than a lease (faults 6, 7 and 10)."""

from shared.jobs.states import JobState
from tests.support.processes import wait_for
from workers.exit_codes import ExitCode


def test_a_worker_that_was_suspended_cannot_settle_jobs_that_another_worker_took_over(stage):
    suspended = stage.worker()
    ids = [stage.admit(tenant, max_tokens=200) for tenant in "abcd"]
    stage.wait_until_running(*ids)
    suspended.pause()
    other = stage.worker()
    wait_for(lambda: all(view.attempts == 2 for view in stage.jobs(ids)), "the other worker to take over")
    suspended.resume()
    wait_for(
        lambda: len(suspended.log_lines("job.lost") + suspended.log_lines("job.settle_refused")) == len(ids),
        "the suspended worker to notice the loss",
    )
    for view in stage.ended(*ids):
        assert (view.state, view.attempts) == (JobState.SUCCEEDED, 2)
        assert stage.event_types(view.id).count("ended") == 1
    assert not suspended.log_lines("job.ended")
    assert stage.stat("ended|succeeded") == len(ids)
    assert suspended.alive
    assert other.alive


def test_a_worker_that_was_suspended_drops_its_lost_job_and_runs_new_ones(stage):
    suspended = stage.worker()
    job_id = stage.admit(max_tokens=3_000)
    stage.wait_until_running(job_id)
    suspended.pause()
    other = stage.worker()
    wait_for(lambda: stage.job(job_id).attempts == 2, "the other worker to take over")
    suspended.resume()
    wait_for(lambda: (view := stage.view(suspended)) and view.slots_busy == 0, "the suspended worker to drop its job")
    stage.store.cancel(job_id)
    other.kill()
    (view,) = stage.ended(stage.admit("green"))
    assert view.state is JobState.SUCCEEDED


def test_a_job_without_new_text_for_two_leases_keeps_its_lease(stage):
    """The engine generates a word every 2.5 s and reports nothing in between; a lease lasts 1 s."""
    stage.worker(PENSTOCK_SIM_DECODE_TPS="0.4")
    stage.worker()
    job_id = stage.admit(max_tokens=2)
    (view,) = stage.ended(job_id)
    assert (view.state, view.attempts) == (JobState.SUCCEEDED, 1)


def test_the_watchdog_ends_a_worker_whose_engine_hangs_and_its_jobs_run_elsewhere(stage):
    hung = stage.worker(PENSTOCK_SIM_DECODE_TPS="0.001", PENSTOCK_STALL_MS="1000")
    ids = [stage.admit(tenant) for tenant in "ab"]
    assert hung.exit_code() == ExitCode.STALL
    stage.worker()
    for view in stage.ended(*ids):
        assert (view.state, view.attempts) == (JobState.SUCCEEDED, 2)
