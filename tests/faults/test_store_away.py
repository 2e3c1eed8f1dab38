"""The store is killed, restarted, emptied, slow, or cuts its connections, under a worker (faults 16 to 21)."""

import os
import signal
import time

from rq.serializers import JSONSerializer
from rq.worker import Worker

from shared.jobs.states import JobState
from tests.support.processes import Stage, wait_for
from workers.exit_codes import ExitCode


def kill_store(stage: Stage) -> None:
    os.kill(stage.embedded.pid, signal.SIGKILL)
    wait_for(lambda: not stage.embedded.alive(), "the store to die")


def test_a_restart_of_the_store_costs_no_attempt(stage):
    worker = stage.worker()
    ids = [stage.admit("abcdefgh"[i % 8], max_tokens=150) for i in range(12)]
    stage.running(*ids[:8])
    kill_store(stage)
    stage.embedded.revive()
    for view in stage.ended(*ids):
        assert (view.state, view.attempts) == (JobState.SUCCEEDED, 1)
    assert stage.stat("ended|succeeded") == len(ids)
    assert worker.alive


def test_a_worker_goes_on_generating_without_a_store_and_settles_when_it_is_back(stage):
    """The store stays away for 3 s: longer than leases last, and than the gap after which none is taken back."""
    worker = stage.worker(PENSTOCK_WORKER_LISTEN="127.0.0.1:0")
    ids = [stage.admit(tenant, max_tokens=300) for tenant in "abcd"]
    stage.running(*ids)
    kill_store(stage)
    wait_for(lambda: worker.figure("penstock_worker_completion_tokens_total") == 4 * 300, "all to be generated")
    assert worker.said("store.away")
    assert worker.figure("penstock_worker_slots_busy") == 4
    stage.embedded.revive()
    for view in stage.ended(*ids):
        assert (view.state, view.attempts) == (JobState.SUCCEEDED, 1)
        assert view.usage.decode_ms < 4_500


def test_a_worker_that_starts_before_its_store_waits_for_it(stage):
    kill_store(stage)
    worker = stage.worker(wait=False)
    wait_for(lambda: worker.said("store.awaited"), "the worker to say what it waits for")
    stage.embedded.revive()
    wait_for(lambda: stage.view(worker), "a live worker")
    stage.ended(stage.admit())


def test_workers_drop_what_an_empty_store_does_not_know_and_serve_on(stage):
    worker = stage.worker()
    old = stage.admit(max_tokens=3_000)
    stage.running(old)
    stage.client.flushall()
    wait_for(lambda: (view := stage.view(worker)) and view.slots_busy == 0, "the worker to drop its job")
    assert stage.store.touch(old) is None
    (view,) = stage.ended(stage.admit())
    assert view.state is JobState.SUCCEEDED
    name = stage.view(worker).name
    wait_for(
        lambda: [known.name for known in Worker.all(stage.client, serializer=JSONSerializer)] == [name],
        "RQ to know the worker again",
    )
    assert stage.client.hget("penstock:config", "lease_ms") == b"1000"


def test_flushed_scripts_are_not_noticed(stage):
    worker = stage.worker()
    ids = []
    for number in range(30):
        ids.append(stage.admit("abc"[number % 3], max_tokens=5))
        stage.client.script_flush()
    assert {view.state for view in stage.ended(*ids)} == {JobState.SUCCEEDED}
    assert not worker.said("duty.fault")


def test_a_store_slower_than_the_workers_patience_costs_nothing(stage):
    """Nobody's beat arrives for 5 s, so nobody's lease is taken."""
    worker = stage.worker()
    ids = [stage.admit(tenant, max_tokens=100) for tenant in "ab"]
    stage.running(*ids)
    os.kill(stage.embedded.pid, signal.SIGSTOP)
    try:
        wait_for(lambda: worker.said("store.away"), "the worker to lose patience")
    finally:
        os.kill(stage.embedded.pid, signal.SIGCONT)
    for view in stage.ended(*ids):
        assert (view.state, view.attempts) == (JobState.SUCCEEDED, 1)
        assert stage.event_types(view.id).count("ended") == 1


def test_connections_cut_all_the_time_slow_things_down_and_no_more(stage):
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


def test_a_worker_with_other_system_wide_settings_does_not_start(stage):
    stage.worker()
    other = stage.worker(wait=False, PENSTOCK_LEASE_MS="2000")
    assert other.exit_code() == ExitCode.CONFIG
    assert "lease_ms is '1000' there and '2000' here" in other.log.read_text()


def test_a_store_that_evicts_is_refused_with_a_sentence(stage):
    stage.client.config_set("maxmemory-policy", "allkeys-lru")
    worker = stage.worker(wait=False)
    assert worker.exit_code() == ExitCode.STORE_UNFIT
    assert "maxmemory-policy is 'allkeys-lru'" in worker.log.read_text()
