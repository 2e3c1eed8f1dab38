"""Tests of a worker in front of another server: what happens to its jobs when that server is busy, fails or is away."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from shared.accounts.usage import UsageRecords
from shared.store import keys
from tests.support.budgets import counted, set_budget
from tests.support.processes import Process, Stage, wait_for
from tests.support.routed import SPENT_KEYS, set_terms
from tests.support.upstream_server import UpstreamServer


@pytest.fixture
def server() -> Iterator[UpstreamServer]:
    with UpstreamServer() as server:
        yield server


@pytest.fixture
def stage(tmp_path: Path, server: UpstreamServer) -> Iterator[Stage]:
    environ = {
        "PENSTOCK_ENGINE": "upstream",
        "PENSTOCK_UPSTREAM_URL": server.url,
        "PENSTOCK_UPSTREAM_MODEL": "m",
        "PENSTOCK_MAX_BATCH_SIZE": "2",
        "PENSTOCK_LEASE_MS": "2500",
        "PENSTOCK_ADMISSION": "bounds",
    }
    with Stage(tmp_path, **environ) as stage:
        yield stage


@pytest.fixture
def worker(stage: Stage) -> Process:
    return stage.worker()


def ended(stage: Stage, job_id: str) -> tuple[str, str, int]:
    """Wait until a job has ended; return its outcome, its code and the number of its attempts."""
    view = stage.ended(job_id)[0]
    return view.state.value, view.code, view.attempts


@pytest.mark.usefixtures("worker")
def test_a_job_runs_on_the_upstream_and_is_charged_by_its_counts(stage: Stage) -> None:
    job_id = stage.admit(model="m")
    view = stage.ended(job_id)[0]
    assert (view.state.value, view.text, view.finish_reason) == ("succeeded", "w0 w1 w2 ", "length")
    assert view.usage is not None
    assert (view.usage.prompt_tokens, view.usage.cached_tokens, view.usage.completion_tokens) == (21, 5, 3)
    assert "token" in stage.event_types(job_id)
    stage.assert_sound()


@pytest.mark.usefixtures("worker")
def test_a_busy_upstream_gives_jobs_back_without_an_attempt(stage: Stage, server: UpstreamServer) -> None:
    server.will("busy", "loading", "busy")
    assert ended(stage, stage.admit(model="m")) == ("succeeded", "", 1)
    assert len(server.bodies) == 4
    stage.assert_sound()


@pytest.mark.usefixtures("worker")
def test_a_failed_attempt_counts_and_the_job_runs_again(stage: Stage, server: UpstreamServer) -> None:
    server.will("cut")
    job_id = stage.admit(model="m")
    assert ended(stage, job_id) == ("succeeded", "", 2)
    assert stage.event_types(job_id)[:2] == ["requeued", "started"]
    assert stage.job(job_id).text == "w0 w1 w2 "
    stage.assert_sound()


def test_attempts_without_an_answer_are_charged_in_no_ledger(stage: Stage, server: UpstreamServer) -> None:
    worker = stage.worker(PENSTOCK_WORKER_LISTEN="127.0.0.1:0")
    set_terms(stage.store, "m", prompt_price_micro=1_000, answer_price_micro=1_000)
    set_budget(stage.store, tokens_per_day=100_000)
    server.retry_after = {"Retry-After": "0.05"}
    server.will("busy", "crash", "fault", "busy", "crash")
    assert ended(stage, stage.admit(model="m")) == ("succeeded", "", 2)
    assert len(server.bodies) == 6
    stage.assert_sound()
    # The server has counted 21 prompt tokens, 5 of them cached, and 3 of the answer.
    (row,) = UsageRecords(stage.client).read_day(UsageRecords(stage.client).today())
    assert (row.amounts.prompt_tokens, row.amounts.completion_tokens, row.amounts.cost_micro) == (21, 3, 24)
    (spent,) = stage.client.keys(SPENT_KEYS)
    assert stage.client.hget(spent, "m|blue") == b"24"
    assert counted(stage.store) == (24, 24, 0)
    assert int(stage.client.hget(keys.tenant("blue"), keys.service_field("m"))) == 1_000 * (16 + 4 * 3)
    stats = stage.store.snapshot(stats=True).stats
    assert (stats["tokens|blue|m|prompt"], stats["tokens|blue|m|completion"]) == (21, 3)
    assert (stats["served|blue|m"], [name for name in stats if name.startswith("wasted|")]) == (16 + 4 * 3, [])
    computed = [worker.figure(f"penstock_worker_{kind}_tokens_total") for kind in ("prompt", "completion")]
    assert computed == [16, 3]


@pytest.mark.usefixtures("worker")
def test_a_job_whose_attempts_all_fail_ends_with_the_upstreams_message(stage: Stage, server: UpstreamServer) -> None:
    server.will("fault", "fault", "fault")
    job_id = stage.admit(model="m")
    assert ended(stage, job_id) == ("failed", "upstream_lost", 3)
    assert stage.job(job_id).message == "the upstream answered 500: out of memory"
    stage.assert_sound()


@pytest.mark.usefixtures("worker")
def test_a_rejected_request_fails_at_once(stage: Stage, server: UpstreamServer) -> None:
    server.will("reject")
    assert ended(stage, stage.admit(model="m")) == ("failed", "upstream_rejected", 1)
    stage.assert_sound()


@pytest.mark.usefixtures("worker")
def test_a_cancel_reaches_the_upstream(stage: Stage, server: UpstreamServer) -> None:
    server.will("endless")
    job_id = stage.admit(model="m", max_tokens=4_000)
    stage.wait_for_text(job_id)
    stage.store.cancel(job_id)
    assert ended(stage, job_id)[0] == "canceled"
    wait_for(lambda: server.closed == 1, "the upstream to see that the request was closed")
    stage.assert_sound()


def test_while_the_upstream_is_away_the_worker_is_not_live_and_its_jobs_wait_without_an_attempt(
    stage: Stage, server: UpstreamServer, worker: Process
) -> None:
    name = stage.view(worker).name  # type: ignore[union-attr]  # the fixture has waited until it is live
    server.stop()
    jobs = [stage.admit(model="m") for _ in range(4)]
    wait_for(lambda: stage.store.snapshot().live_models == [], "the worker to be no longer live")
    assert stage.client.hget(keys.worker(name), "slots") is None
    assert {view.state.value for view in stage.jobs(jobs)} == {"queued"}
    assert worker.alive
    server.start()
    views = stage.ended(*jobs)
    assert {(view.state.value, view.attempts) for view in views} == {("succeeded", 1)}
    wait_for(lambda: stage.view(worker), "the worker to be live again")
    stage.assert_sound()


def test_a_worker_whose_upstream_is_not_there_yet_becomes_live_when_it_is(stage: Stage, server: UpstreamServer) -> None:
    server.stop()
    worker = stage.worker(wait=False)
    wait_for(lambda: worker.log_lines("worker.upstream"), "the worker to start")
    assert stage.view(worker) is None
    server.start()
    wait_for(lambda: stage.view(worker), "a live worker")


def test_the_slots_that_a_worker_reports_grow_as_long_as_the_server_computes_more(
    stage: Stage, server: UpstreamServer
) -> None:
    server.words, server.word_s = 100_000, 0.05
    worker = stage.worker(PENSTOCK_MAX_BATCH_SIZE="12")
    assert stage.view(worker).slots == 4  # type: ignore[union-attr]  # the worker is live
    # More than 12, and not more than a tenant's queue holds before the worker claims some.
    jobs = [stage.admit(model="m", max_tokens=4_000, deadline_ms=120_000) for _ in range(15)]
    wait_for(lambda: (view := stage.view(worker)) and view.slots == 12, "12 slots", timeout_s=90)
    wait_for(lambda: server.open == 12, "12 requests at the server")
    for job_id in jobs:
        stage.store.cancel(job_id)
    assert {view.state.value for view in stage.ended(*jobs)} == {"canceled"}
    stage.assert_sound()


def test_one_worker_has_hundreds_of_answers_at_once(stage: Stage, server: UpstreamServer) -> None:
    server.words, server.word_s = 1_000, 2.0
    stage.worker(PENSTOCK_MAX_BATCH_SIZE="300", PENSTOCK_UPSTREAM_CONCURRENCY="300")
    tenants = [f"t{number}" for number in range(50)]
    jobs = [stage.admit(tenant, model="m", deadline_ms=300_000) for _ in range(6) for tenant in tenants]
    wait_for(lambda: server.open == 300, "300 requests at the server", timeout_s=60)
    for job_id in jobs:
        stage.wait_for_text(job_id)
        stage.store.cancel(job_id)
    wait_for(lambda: server.closed == 300, "all requests to be closed", timeout_s=60)
    assert {view.state.value for view in stage.ended(*jobs)} == {"canceled"}
    stage.assert_sound()


def test_of_two_replicas_one_is_killed_under_load_and_every_job_ends_once(
    stage: Stage, server: UpstreamServer, worker: Process
) -> None:
    with UpstreamServer(words=20) as other:
        server.words, server.word_s, other.word_s = 20, 0.02, 0.02
        second = stage.worker(PENSTOCK_UPSTREAM_URL=other.url)
        jobs = [stage.admit(model="m") for _ in range(16)]
        wait_for(lambda: server.open == 2 and other.open == 2, "jobs at both servers")
        server.stop()
        views = stage.ended(*jobs)
        assert {view.state.value for view in views} == {"succeeded"}
        # Only the jobs that were cut in the middle of their answers lost an attempt.
        assert sum(view.attempts - 1 for view in views) <= 2
        assert worker.alive
        server.start()
        wait_for(lambda: stage.view(worker), "the worker to be live again")
        second.terminate()
        assert second.exit_code() == 0
    assert ended(stage, stage.admit(model="m"))[0] == "succeeded"
    stage.assert_sound()


def test_a_worker_that_drains_finishes_what_runs_upstream(
    stage: Stage, server: UpstreamServer, worker: Process
) -> None:
    server.words = 200
    job_id = stage.admit(model="m")
    server.wait_for_requests(1)
    worker.terminate()
    assert worker.exit_code() == 0
    assert ended(stage, job_id)[0] == "succeeded"
    stage.assert_sound()


def test_a_worker_whose_grace_is_over_gives_its_job_to_another(stage: Stage, server: UpstreamServer) -> None:
    first = stage.worker(PENSTOCK_DRAIN_GRACE_MS="100")
    server.will("endless")
    job_id = stage.admit(model="m", max_tokens=4_000)
    stage.wait_for_text(job_id)
    first.terminate()
    assert first.exit_code() == 0
    wait_for(lambda: server.closed == 1, "the upstream to see that the request was closed")
    stage.worker()
    assert ended(stage, job_id) == ("succeeded", "", 1)
    stage.assert_sound()
