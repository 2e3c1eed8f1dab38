"""The commands that drain and resume workers: what workers are then told, and what is refused."""

from pathlib import Path

import pytest
import redis

from shared.accounts.admin_actions import list_actions
from shared.store import keys
from shared.store.store import Store
from tests.support.builders import a_heartbeat, a_job, admitted, an_ending, claim_one
from tests.support.in_process import InProcess
from tests.support.processes import wait_for
from tests.support.program import Program, program


@pytest.fixture
def penstock(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, store_url: str, redis_client: redis.Redis) -> InProcess:
    """The commands on the session's store, which is empty."""
    return InProcess(monkeypatch, tmp_path, store_url)


@pytest.fixture
def process(tmp_path: Path, store_url: str, redis_client: redis.Redis) -> Program:
    """The program on the session's store, for commands that a test looks at while they run."""
    return program(tmp_path, REDIS_URL=store_url)


def told_to_drain(store: Store, *workers: str) -> list[bool]:
    """Send a heartbeat of each worker, and return whether it must drain."""
    return [store.renew(a_heartbeat(worker), []).drain for worker in workers]


def test_one_worker_is_drained_and_resumed_and_both_are_recorded(
    store: Store, penstock: InProcess, redis_client: redis.Redis
) -> None:
    assert told_to_drain(store, "w1", "w2") == [False, False]
    assert penstock("drain", "w1").returncode == 0
    assert told_to_drain(store, "w1", "w2") == [True, False]
    assert not store.overview().draining
    assert penstock("resume", "w1").returncode == 0
    assert told_to_drain(store, "w1", "w2") == [False, False]
    recorded = [(action.what, action.on) for action in list_actions(redis_client, limit=9)]
    assert recorded == [("worker.resume", "worker w1"), ("worker.drain", "worker w1")]


def test_all_workers_are_drained_with_the_door_and_all_are_resumed(
    store: Store, penstock: InProcess, redis_client: redis.Redis
) -> None:
    told_to_drain(store, "w1", "w2")
    assert penstock("drain", "w1").returncode == 0
    assert penstock("drain", "--all").returncode == 0
    assert told_to_drain(store, "w1", "w2", "new") == [True, True, True]
    assert store.overview().draining
    one = penstock("resume", "w1")
    assert (one.returncode, "--all" in one.stderr) == (1, True)
    assert told_to_drain(store, "w1") == [True]
    assert penstock("drain", "w2").returncode == 0
    assert penstock("resume", "--all").returncode == 0
    assert told_to_drain(store, "w1", "w2", "new") == [False, False, False]
    assert not store.overview().draining
    assert next(list_actions(redis_client, limit=1)).what == "system.resume"


@pytest.mark.parametrize("command", ["drain", "resume"])
@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["w3"], "worker='w3' does not exist; workers: w1, w2"),
        (["w1 "], "worker='w1 ' does not exist"),
        ([""], "worker='' does not exist"),
        ([], "--all"),
        (["w1", "--all"], "--all"),
    ],
)
def test_a_name_that_no_worker_has_is_refused_with_those_that_exist_and_changes_nothing(
    store: Store, penstock: InProcess, redis_client: redis.Redis, command: str, arguments: list[str], expected: str
) -> None:
    told_to_drain(store, "w1", "w2")
    before = sorted(redis_client.keys("*"))
    refused = penstock(command, *arguments)
    assert (refused.returncode, refused.stdout) == (2, "")
    assert expected in refused.stderr
    assert sorted(redis_client.keys("*")) == before
    assert told_to_drain(store, "w1", "w2") == [False, False]


def test_a_worker_that_is_gone_is_refused_although_another_program_left_its_mark(
    penstock: InProcess, redis_client: redis.Redis
) -> None:
    redis_client.hset(keys.worker("w1"), "drain_asked", "1")
    refused = penstock("drain", "w1")
    assert (refused.returncode, "workers: none" in refused.stderr) == (2, True)
    redis_client.delete(keys.worker("w1"))


def test_the_command_waits_until_the_worker_s_jobs_have_ended(store: Store, process: Program) -> None:
    told_to_drain(store, "w1", "w2")
    admitted(store, a_job())
    job = claim_one(store, "w1")
    waiting = process.start("drain", "w1", "--wait")
    wait_for(lambda: told_to_drain(store, "w1") == [True], "the worker to be told")
    # The worker reports that it drains, but it still runs its job.
    store.renew(a_heartbeat("w1", draining=True), [job.held])
    assert waiting.poll() is None
    store.settle(an_ending(job.held), "w1")
    _, stderr = waiting.communicate(timeout=60)
    assert (waiting.returncode, stderr.splitlines()[-1]) == (0, "no running job is left")


def test_the_command_trusts_no_report_from_before_the_drain(store: Store, process: Program) -> None:
    # The worker was drained before and has been told to resume, so it may hold a claim that has no answer yet.
    store.renew(a_heartbeat("w1", draining=True), [])
    waiting = process.start("drain", "--all", "--wait")
    wait_for(lambda: store.overview().draining, "the drain")
    wait_for(lambda: store.client.hget(keys.worker("w1"), "draining") is None, "the old report to be removed")
    store.renew(a_heartbeat("w1"), [])
    assert waiting.poll() is None
    store.renew(a_heartbeat("w1", draining=True), [])
    waiting.communicate(timeout=60)
    assert waiting.returncode == 0


def test_the_command_stops_waiting_if_somebody_resumes_the_worker(store: Store, process: Program) -> None:
    told_to_drain(store, "w1")
    waiting = process.start("drain", "w1", "--wait")
    wait_for(lambda: told_to_drain(store, "w1") == [True], "the worker to be told")
    assert process("resume", "w1").returncode == 0
    _, stderr = waiting.communicate(timeout=60)
    assert (waiting.returncode, "revoked" in stderr) == (1, True)
