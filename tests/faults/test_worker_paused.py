"""A worker that was stopped and comes back, one whose engine hangs, and steps longer than leases (6, 7, 10)."""

from shared.jobs.states import JobState
from tests.support.processes import wait_for
from workers.exit_codes import ExitCode


def test_a_ghost_may_not_settle_what_was_taken_from_it(stage):
    ghost = stage.worker()
    ids = [stage.admit(tenant, max_tokens=200) for tenant in "abcd"]
    stage.running(*ids)
    ghost.pause()
    other = stage.worker()
    wait_for(lambda: all(view.attempts == 2 for view in stage.jobs(ids)), "the other worker to take over")
    ghost.resume()
    wait_for(lambda: len(ghost.said("job.lost") + ghost.said("job.settle_refused")) == len(ids), "the ghost to see it")
    for view in stage.ended(*ids):
        assert (view.state, view.attempts) == (JobState.SUCCEEDED, 2)
        assert stage.event_types(view.id).count("ended") == 1
    assert not ghost.said("job.ended")
    assert stage.stat("ended|succeeded") == len(ids)
    assert ghost.alive
    assert other.alive


def test_a_ghost_drops_its_sequences_and_works_on(stage):
    ghost = stage.worker()
    job_id = stage.admit(max_tokens=3_000)
    stage.running(job_id)
    ghost.pause()
    other = stage.worker()
    wait_for(lambda: stage.job(job_id).attempts == 2, "the other worker to take over")
    ghost.resume()
    wait_for(lambda: (view := stage.view(ghost)) and view.slots_busy == 0, "the ghost to hold nothing")
    stage.store.cancel(job_id)
    other.kill()
    (view,) = stage.ended(stage.admit("green"))
    assert view.state is JobState.SUCCEEDED


def test_a_job_that_says_nothing_for_two_leases_keeps_its_lease(stage):
    """A word every 2.5 s: between two of them the engine's thread says nothing, and the lease is 1 s."""
    stage.worker(PENSTOCK_SIM_DECODE_TPS="0.4")
    stage.worker()
    job_id = stage.admit(max_tokens=2)
    (view,) = stage.ended(job_id)
    assert (view.state, view.attempts) == (JobState.SUCCEEDED, 1)


def test_the_watchdog_ends_a_worker_whose_engine_hangs_and_its_jobs_go_elsewhere(stage):
    hung = stage.worker(PENSTOCK_SIM_DECODE_TPS="0.001", PENSTOCK_STALL_MS="1000")
    ids = [stage.admit(tenant) for tenant in "ab"]
    assert hung.exit_code() == ExitCode.STALL
    stage.worker()
    for view in stage.ended(*ids):
        assert (view.state, view.attempts) == (JobState.SUCCEEDED, 2)
