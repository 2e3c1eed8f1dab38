"""Tests traces when a worker is killed and when the collector hangs, with real processes."""

import time
from collections.abc import Iterator

import pytest

from tests.support.collector import Collector, TracingClient, one
from tests.support.processes import Process, Stage, in_time
from tests.support.served import SIM, Served

pytestmark = pytest.mark.timeout(400)

REQUEST, QUEUE, ATTEMPT = "penstock.request", "penstock.queue", "penstock.attempt"


@pytest.fixture
def collector() -> Iterator[Collector]:
    with Collector() as collector:
        yield collector


@pytest.fixture
def stage(tmp_path, collector) -> Iterator[Stage]:
    """A stage on which all processes send their traces to the collector."""
    with Stage(tmp_path, **SIM, **collector.environ, PENSTOCK_LEASE_MS="6000") as stage:
        yield stage


@pytest.fixture
def worker(stage) -> Process:
    """The first worker."""
    return stage.worker()


@pytest.fixture
def served(stage, worker) -> Iterator[Served]:
    with Served(stage, PENSTOCK_WEB_WORKERS="1") as served:
        yield served
    stage.assert_sound()


def test_the_trace_of_a_job_whose_worker_is_killed_continues_with_the_other_worker(served, collector, stage, worker):
    other, client = stage.worker(), TracingClient()
    # The answer would take longer than the test, which cancels the job in its second attempt.
    body = {"prompt": "a job that survives", "max_tokens": 8_000, "deadline_ms": 600_000}
    job = served.http.post("/v1/jobs", json=body, headers=client.headers)
    assert job.status_code == 202
    queued = one(collector.wait_for(client.trace_id, REQUEST, QUEUE), QUEUE)
    first = next(each for each in (worker, other) if stage.view(each).name == queued.attributes["penstock.worker"])
    survivor = stage.view(other if first is worker else worker).name
    first.kill()
    collector.wait_for(client.trace_id, REQUEST, QUEUE, attempt=2)
    served.http.delete(f"/v1/jobs/{job.json()['id']}")
    spans = collector.wait_for(client.trace_id, REQUEST, QUEUE, ATTEMPT, attempt=2)
    queues = [span for span in spans if span.name == QUEUE]
    assert [span.attributes["penstock.attempt"] for span in queues] == [1, 2]
    attempt = one(spans, ATTEMPT)
    assert (attempt.attributes["penstock.attempt"], attempt.attributes["penstock.outcome"]) == (2, "canceled")
    assert attempt.attributes["penstock.worker"] == survivor
    assert {span.parent_id for span in (*queues, attempt)} == {one(spans, REQUEST).span_id}


def test_a_collector_that_hangs_delays_neither_jobs_nor_the_end_of_a_worker(served, collector, worker):
    collector.may_answer.clear()
    collector.asked.clear()
    try:

        def attempt():
            for _ in range(5):
                began_s = time.monotonic()
                body = {"prompt": "hi", "max_tokens": 5}
                assert served.http.post("/v1/jobs?wait_ms=30000", json=body).status_code == 200
                yield time.monotonic() - began_s, 2.0

        in_time(attempt)
        assert collector.asked.wait(60)
        worker.terminate()
        assert worker.exit_code(timeout_s=60) == 0
    finally:
        collector.may_answer.set()
