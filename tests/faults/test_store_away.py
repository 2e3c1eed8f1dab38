"""Tests of a worker whose store is killed, restarted, emptied or slow, or cuts its connections (faults 16 to 21)."""

import os
import signal
import time

from rq.serializers import JSONSerializer
from rq.worker import Worker

from shared.jobs.states import JobState
from tests.support.processes import Stage, wait_for
from workers.exit_codes import ExitCode


def kill_store(stage: Stage) -> None:
    # During an fsync, the server keeps what it has acknowledged for up to two seconds, and would lose it.
    stage.client.config_set("appendfsync", "always")
    os.kill(stage.embedded.pid, signal.SIGKILL)
    wait_for(lambda: not stage.embedded.alive(), "the store to die")


def test_a_restart_of_the_store_costs_no_attempt(stage):
    worker = stage.worker()
    ids = [stage.admit("abcdefgh"[i % 8], max_tokens=400 if i < 8 else 20) for i in range(12)]
    stage.wait_until_running(*ids[:8])
    kill_store(stage)
    stage.embedded.revive()
    for view in stage.ended(*ids):
        assert (view.state, view.attempts) == (JobState.SUCCEEDED, 1)
    assert stage.stat("ended|succeeded") == len(ids)
    assert worker.alive


def test_a_worker_continues_to_generate_without_a_store_and_settles_when_it_is_back(stage):
    """The store is away for 3 s, which is longer than a lease. After such a gap, reaping pauses for a lease."""
    worker = stage.worker(PENSTOCK_WORKER_LISTEN="127.0.0.1:0")
    began_s = time.monotonic()
    ids = [stage.admit(tenant, max_tokens=300) for tenant in "abcd"]
    stage.wait_until_running(*ids)
    kill_store(stage)
    wait_for(lambda: worker.figure("penstock_worker_completion_tokens_total") == 4 * 300, "all to be generated")
    took_s = time.monotonic() - began_s
    assert worker.log_lines("store.away")
    assert worker.figure("penstock_worker_slots_busy") == 4
    stage.embedded.revive()
    for view in stage.ended(*ids):
        assert (view.state, view.attempts) == (JobState.SUCCEEDED, 1)
        assert view.usage.decode_ms < 1_000 * took_s


def test_a_worker_that_starts_before_its_store_waits_for_it(stage):
    kill_store(stage)
    worker = stage.worker(wait=False)
    wait_for(lambda: worker.log_lines("store.awaited"), "the worker to log that it waits for the store")
    stage.embedded.revive()
    wait_for(lambda: stage.view(worker), "a live worker")
    stage.ended(stage.admit())


def test_a_worker_drops_jobs_that_an_emptied_store_does_not_know_and_serves_new_ones(stage):
    worker = stage.worker()
    unknown = stage.admit(max_tokens=3_000)
    stage.wait_until_running(unknown)
    stage.client.flushall()
    wait_for(lambda: (view := stage.view(worker)) and view.slots_busy == 0, "the worker to drop its job")
    assert stage.store.touch(unknown) is None
    (view,) = stage.ended(stage.admit())
    assert view.state is JobState.SUCCEEDED
    name = stage.view(worker).name
    wait_for(
        lambda: [known.name for known in Worker.all(stage.client, serializer=JSONSerializer)] == [name],
        "RQ to know the worker again",
    )
    wait_for(lambda: stage.client.hget("penstock:config", "lease_ms") == b"1000", "the settings to be written again")


def test_a_flush_of_the_scripts_causes_no_failure(stage):
    worker = stage.worker()
    ids = []
    for number in range(30):
        ids.append(stage.admit("abc"[number % 3], max_tokens=5))
        stage.client.script_flush()
    assert {view.state for view in stage.ended(*ids)} == {JobState.SUCCEEDED}
    assert not worker.log_lines("duty.fault")


def test_a_store_slower_than_the_workers_timeout_costs_no_attempt(stage):
    """No heartbeat of any worker arrives for 5 s, so no lease is taken back."""
    worker = stage.worker()
    ids = [stage.admit(tenant, max_tokens=100) for tenant in "ab"]
    stage.wait_until_running(*ids)
    os.kill(stage.embedded.pid, signal.SIGSTOP)
    try:
        wait_for(lambda: worker.log_lines("store.away"), "a call of the worker to time out")
    finally:
        os.kill(stage.embedded.pid, signal.SIGCONT)
    for view in stage.ended(*ids):
        assert (view.state, view.attempts) == (JobState.SUCCEEDED, 1)
        assert stage.event_types(view.id).count("ended") == 1


def test_all_jobs_succeed_although_connections_are_cut_repeatedly(stage):
    stage.worker()
    ids = [stage.admit("abcdefgh"[i % 8], max_tokens=20) for i in range(40)]
    until = time.monotonic() + 4
    while time.monotonic() < until:
        stage.client.client_kill_filter(_type="normal", skipme=True)
        time.sleep(0.1)
    for view in stage.ended(*ids):
        assert view.state is JobState.SUCCEEDED
        assert stage.event_types(view.id).count("ended") == 1
    assert stage.stat("ended|succeeded") == len(ids)


def test_a_worker_whose_system_wide_settings_differ_from_the_stores_does_not_start(stage):
    stage.worker()
    other = stage.worker(wait=False, PENSTOCK_LEASE_MS="2000")
    assert other.exit_code() == ExitCode.CONFIG
    assert "lease_ms is '1000' in the store and '2000' here" in other.log.read_text()


def test_a_worker_refuses_a_store_with_an_eviction_policy_and_names_the_policy(stage):
    stage.client.config_set("maxmemory-policy", "allkeys-lru")
    worker = stage.worker(wait=False)
    assert worker.exit_code() == ExitCode.STORE_UNFIT
    assert "maxmemory-policy is 'allkeys-lru'" in worker.log.read_text()
