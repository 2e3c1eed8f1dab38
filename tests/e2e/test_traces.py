"""Tests the traces of jobs through a real door and real workers, as a collector receives them."""

import secrets
import time
from collections.abc import Iterator

import pytest

from shared.accounts.tenants import Tenants
from shared.jobs.tenant_policy import TenantPolicy
from tests.support.collector import Collector, Received
from tests.support.processes import Process, Stage, in_time, wait_for
from tests.support.served import SIM, Served

pytestmark = pytest.mark.ways("direct", reason="a proxy does not change a trace")

REQUEST, ADMISSION, QUEUE, ATTEMPT = "penstock.request", "penstock.admission", "penstock.queue", "penstock.attempt"
PREFILL, DECODE, DELIVERY = "penstock.prefill", "penstock.decode", "penstock.delivery"
#: How far apart the clocks of two spans may be, in seconds: times of the store, of the door and of a worker are mixed.
SLACK_S = 0.25


@pytest.fixture(scope="module")
def collector() -> Iterator[Collector]:
    with Collector() as collector:
        yield collector


@pytest.fixture
def stage(tmp_path, collector) -> Iterator[Stage]:
    """A stage on which all processes send their traces to the collector."""
    with Stage(tmp_path, **SIM, **collector.environ, PENSTOCK_LEASE_MS="2000") as stage:
        yield stage


@pytest.fixture
def worker(stage) -> Process:
    """The first worker."""
    return stage.worker()


@pytest.fixture
def common(stage, worker) -> Iterator[Served]:
    with Served(stage) as served:
        yield served


class Client:
    """A client that traces its requests: it names its own span in each."""

    def __init__(self, *, sampled: bool = True) -> None:
        self.trace_id, self.span_id = secrets.token_hex(16), secrets.token_hex(8)
        self.headers = {"traceparent": f"00-{self.trace_id}-{self.span_id}-{'01' if sampled else '00'}"}


def one(spans: list[Received], name: str) -> Received:
    (found,) = [span for span in spans if span.name == name]
    return found


def is_inside(inner: Received, outer: Received) -> bool:
    return outer.begun_s - SLACK_S <= inner.begun_s <= inner.ended_s <= outer.ended_s + SLACK_S


def test_a_job_is_one_trace_from_the_client_to_the_delivery(served, collector):
    client, began_s = Client(), time.time()
    body = {"model": "sim", "messages": [{"role": "user", "content": "tell me a story"}], "max_tokens": 60}
    answer = served.http.post("/v1/chat/completions", json=body, headers=client.headers | {"X-Tenant": "blue"})
    assert answer.status_code == 200, answer.text
    ended_s = time.time()
    spans = collector.wait_for(client.trace_id, REQUEST, ADMISSION, QUEUE, PREFILL, DECODE, DELIVERY, ATTEMPT)
    assert len(spans) == 7
    request, attempt = one(spans, REQUEST), one(spans, ATTEMPT)
    assert request.parent_id == client.span_id
    assert {one(spans, name).parent_id for name in (ADMISSION, QUEUE, ATTEMPT)} == {request.span_id}
    assert {one(spans, name).parent_id for name in (PREFILL, DECODE, DELIVERY)} == {attempt.span_id}
    assert [(span.name, span.service) for span in spans if span.service != "penstock-worker"] == [
        (REQUEST, "penstock-door"),
        (ADMISSION, "penstock-door"),
    ]
    assert began_s - SLACK_S <= request.begun_s
    assert request.ended_s <= ended_s + SLACK_S
    assert all(is_inside(one(spans, name), request) for name in (ADMISSION, QUEUE, PREFILL, DECODE))
    assert all(is_inside(one(spans, name), attempt) for name in (PREFILL, DECODE, DELIVERY))
    assert one(spans, QUEUE).ended_s <= attempt.begun_s + SLACK_S
    assert one(spans, PREFILL).ended_s <= one(spans, DECODE).begun_s + SLACK_S
    # 60 words at 200 a second.
    assert one(spans, DECODE).ended_s - one(spans, DECODE).begun_s > 0.2
    assert request.attributes["http.response.status_code"] == 200
    assert attempt.attributes["penstock.outcome"] == "succeeded"
    assert attempt.attributes["gen_ai.usage.output_tokens"] == 60
    assert {span.attributes["penstock.tenant"] for span in spans if span.name in {ADMISSION, QUEUE, ATTEMPT}} == {
        "blue"
    }
    assert not any(span.failed for span in spans)
    assert "story" not in str(spans)


def test_a_request_without_a_trace_begins_one_which_the_job_continues(served, collector):
    job_id = served.submit("red").json()["id"]

    def trace_of_job() -> str:
        ids = [span.trace_id for span in collector.spans if span.attributes.get("penstock.job.id") == job_id]
        return ids[0] if ids else ""

    trace_id = wait_for(trace_of_job, "a span of the job", timeout_s=60)
    spans = collector.wait_for(trace_id, REQUEST, ADMISSION, QUEUE, ATTEMPT)
    assert one(spans, REQUEST).parent_id == ""


def test_a_refused_request_is_a_trace_that_says_why(served, collector):
    Tenants(served.stage.client).set("hasty", TenantPolicy(rpm=1))
    assert served.submit("hasty").status_code == 202
    client = Client()
    body = {"prompt": "again", "max_tokens": 5}
    refused = served.http.post("/v1/jobs", json=body, headers=client.headers | {"X-Tenant": "hasty"})
    assert refused.status_code == 429
    spans = collector.wait_for(client.trace_id, ADMISSION, REQUEST)
    assert [span.name for span in spans] == [REQUEST, ADMISSION]
    said = one(spans, ADMISSION).attributes
    assert (said["penstock.verdict"], said["penstock.refusal.reason"]) == ("refused", "rate_limited")
    assert said["penstock.retry_hint_ms"] == refused.json()["retry_hint_ms"]
    assert one(spans, REQUEST).attributes["http.response.status_code"] == 429


def test_a_request_that_is_not_valid_is_a_trace_with_its_status(served, collector):
    client = Client()
    assert served.http.post("/v1/jobs", json={"prompt": 7}, headers=client.headers).status_code == 422
    spans = collector.wait_for(client.trace_id, REQUEST)
    assert one(spans, REQUEST).attributes["http.response.status_code"] == 422


def test_a_canceled_job_has_an_attempt_that_was_canceled(served, collector):
    client = Client()
    body = {"prompt": "a long one", "max_tokens": 2_000}
    job = served.http.post("/v1/jobs", json=body, headers=client.headers).json()
    wait_for(lambda: served.http.get(f"/v1/jobs/{job['id']}").json()["status"] == "running", "the job to run")
    served.http.delete(f"/v1/jobs/{job['id']}")
    spans = collector.wait_for(client.trace_id, REQUEST, QUEUE, ATTEMPT, outcome="canceled")
    assert one(spans, ATTEMPT).parent_id == one(spans, REQUEST).span_id
    # The request was answered when the job was admitted; the trace goes on after it.
    assert one(spans, ATTEMPT).ended_s > one(spans, REQUEST).ended_s


def test_the_trace_of_a_job_whose_worker_is_killed_goes_on_with_the_other_worker(served, collector, stage, worker):
    client = Client()
    body = {"prompt": "a job that survives", "max_tokens": 600}
    job = served.http.post("/v1/jobs", json=body, headers=client.headers).json()
    stage.wait_until_running(job["id"])
    collector.wait_for(client.trace_id, QUEUE)
    other = stage.worker()
    worker.kill()
    spans = collector.wait_for(client.trace_id, REQUEST, QUEUE, ATTEMPT, attempt=2)
    queues = [span for span in spans if span.name == QUEUE]
    assert [span.attributes["penstock.attempt"] for span in queues] == [1, 2]
    attempt = one(spans, ATTEMPT)
    assert (attempt.attributes["penstock.attempt"], attempt.attributes["penstock.outcome"]) == (2, "succeeded")
    assert attempt.attributes["penstock.worker"] == stage.view(other).name
    assert queues[0].attributes["penstock.worker"] != attempt.attributes["penstock.worker"]
    assert {span.parent_id for span in (*queues, attempt)} == {one(spans, REQUEST).span_id}


def test_a_client_that_does_not_want_a_trace_gets_none(served, collector):
    unwanted, wanted = Client(sampled=False), Client()
    for client in (unwanted, wanted):
        body = {"prompt": "hi", "max_tokens": 5}
        assert served.http.post("/v1/jobs?wait_ms=30000", json=body, headers=client.headers).status_code == 200
    collector.wait_for(wanted.trace_id, REQUEST, ATTEMPT)
    assert collector.trace(unwanted.trace_id) == []


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
