"""Signals and operators that want a worker to stop (faults 11 and 12)."""

import os
import signal
import time

import pytest

from shared.jobs.states import JobState
from shared.store import keys
from shared.store.connection import WORKER
from tests.support.processes import wait_for
from workers.exit_codes import ExitCode


def ask_to_drain(worker):
    """One signal; returns when it was heard."""
    worker.terminate()
    wait_for(lambda: worker.said("worker.draining"), "the drain to begin")


def test_a_draining_worker_finishes_what_runs_and_claims_nothing_more(stage):
    worker = stage.worker()
    ids = [stage.admit("abcdefgh"[i % 8], max_tokens=100) for i in range(12)]
    stage.running(*ids[:8])
    worker.terminate()
    assert worker.exit_code() == ExitCode.DRAINED
    views = stage.jobs(ids)
    assert [view.state for view in views] == [JobState.SUCCEEDED] * 8 + [JobState.QUEUED] * 4
    assert [view.attempts for view in views] == [1] * 8 + [0] * 4
    stage.worker()
    assert {view.attempts for view in stage.ended(*ids)} == {1}


def test_what_does_not_end_within_the_grace_time_goes_back_uncounted(stage):
    worker = stage.worker(PENSTOCK_DRAIN_GRACE_MS="1000")
    ids = [stage.admit(tenant, max_tokens=1_000) for tenant in "abc"]
    stage.running(*ids)
    asked = time.monotonic()
    worker.terminate()
    assert worker.exit_code() == ExitCode.DRAINED
    # Its jobs would take ten.
    assert time.monotonic() - asked < 5
    for view in stage.jobs(ids):
        assert (view.state, view.attempts) == (JobState.QUEUED, 0)
        assert view.position == 1
    stage.worker(PENSTOCK_SIM_DECODE_TPS="1000")
    for view in stage.ended(*ids):
        assert (view.state, view.attempts) == (JobState.SUCCEEDED, 1)


def test_without_a_grace_time_everything_goes_back_at_once(stage):
    worker = stage.worker(PENSTOCK_DRAIN_GRACE_MS="0")
    job_id = stage.admit(max_tokens=1_000)
    stage.running(job_id)
    worker.terminate()
    assert worker.exit_code() == ExitCode.DRAINED
    assert stage.job(job_id).state is JobState.QUEUED
    stage.store.cancel(job_id)


def test_a_second_signal_ends_the_worker_at_once_and_its_jobs_lapse(stage):
    worker = stage.worker()
    job_id = stage.admit(max_tokens=1_000)
    stage.running(job_id)
    ask_to_drain(worker)
    # Whoever means it says it again, later than one request comes twice.
    wait_for(lambda: worker.terminate() or not worker.alive, "the worker to end")
    assert worker.exit_code() == ExitCode.FORCED
    stage.worker(PENSTOCK_SIM_DECODE_TPS="1000")
    (view,) = stage.ended(job_id)
    assert (view.state, view.attempts) == (JobState.SUCCEEDED, 2)


def test_a_ctrl_c_that_arrives_twice_over_the_terminal_and_the_parent_is_one_request(stage):
    # Several times over: two signals at once reach a process of many threads in more ways than one.
    for _ in range(6):
        worker = stage.worker()
        job_id = stage.admit(max_tokens=20)
        # What the store has just leased and the worker has not heard of goes back.
        stage.speaks(job_id)
        os.kill(worker.pid, signal.SIGINT)
        worker.terminate()
        assert worker.exit_code() == ExitCode.DRAINED
        assert stage.job(job_id).state is JobState.SUCCEEDED


def test_a_group_that_is_signaled_whole_and_by_its_parent_drains(stage):
    worker = stage.worker()
    job_id = stage.admit(max_tokens=100)
    stage.speaks(job_id)
    ask_to_drain(worker)
    worker.terminate()
    assert worker.exit_code() == ExitCode.DRAINED
    assert stage.job(job_id).state is JobState.SUCCEEDED


@pytest.mark.parametrize("sign", [signal.SIGTERM, signal.SIGINT])
def test_a_worker_that_is_stopped_before_it_serves_ends_at_once_with_a_sentence(stage, sign):
    os.kill(stage.embedded.pid, signal.SIGKILL)
    wait_for(lambda: not stage.embedded.alive(), "the store to die")
    worker = stage.worker(wait=False)
    wait_for(lambda: worker.said("store.awaited"), "the worker to say what it waits for")
    os.kill(worker.pid, sign)
    assert worker.exit_code() == ExitCode.DRAINED
    assert worker.said(f"{sign.name} before it served")
    assert not worker.said("Traceback")
    stage.embedded.revive()


def test_an_operators_drain_stops_claims_until_it_is_taken_back(stage):
    worker = stage.worker()
    name = stage.view(worker).name
    stage.client.hset(keys.worker(name), "drain_asked", "1")
    wait_for(lambda: stage.view(worker).draining, "the worker to say that it drains")
    job_id = stage.admit()
    steps, beat = stage.view(worker).facts["steps"], stage.client.hget(keys.worker(name), "beat_ms")
    wait_for(lambda: stage.client.hget(keys.worker(name), "beat_ms") != beat, "another beat")
    assert stage.job(job_id).state is JobState.QUEUED
    assert stage.view(worker).facts["steps"] == steps
    stage.client.hdel(keys.worker(name), "drain_asked")
    (view,) = stage.ended(job_id)
    assert view.state is JobState.SUCCEEDED
    assert worker.alive


def test_rq_forgets_a_worker_that_has_drained(stage):
    worker = stage.worker()
    name = wait_for(lambda: stage.view(worker), "the worker").name
    wait_for(lambda: stage.client.sismember("rq:workers", f"rq:worker:{name}"), "RQ to know it")
    worker.terminate()
    assert worker.exit_code() == ExitCode.DRAINED
    assert stage.client.smembers("rq:workers") == set()


def test_an_idle_worker_whose_store_is_gone_stops_within_a_few_seconds(stage):
    """Its claim is never answered, and no job of its own waits for anything."""
    worker = stage.worker()
    os.kill(stage.embedded.pid, signal.SIGKILL)
    wait_for(lambda: not stage.embedded.alive(), "the store to die")
    wait_for(lambda: any("job_loop" in line for line in worker.said("store.away")), "a claim without an answer")
    asked = time.monotonic()
    worker.terminate()
    assert worker.exit_code() == ExitCode.DRAINED
    assert time.monotonic() - asked < 6
    stage.embedded.revive()


@pytest.mark.parametrize("runs", [False, True])
def test_a_worker_whose_store_hangs_waits_for_it_once_and_stops(stage, runs):
    """The store takes what it is sent and says nothing: each call to it takes as long as a worker has patience."""
    grace_s = 1
    worker = stage.worker(PENSTOCK_DRAIN_GRACE_MS=str(1_000 * grace_s))
    job_id = stage.admit(max_tokens=5_000) if runs else ""
    if runs:
        stage.running(job_id)
    os.kill(stage.embedded.pid, signal.SIGSTOP)
    try:
        asked = time.monotonic()
        worker.terminate()
        assert worker.exit_code(timeout_s=60) == ExitCode.DRAINED
        assert time.monotonic() - asked < grace_s + 2 * WORKER.answer_s
    finally:
        os.kill(stage.embedded.pid, signal.SIGCONT)
    if runs:
        stage.worker(PENSTOCK_SIM_DECODE_TPS="10000")
        (view,) = stage.ended(job_id)
        assert view.state is JobState.SUCCEEDED
