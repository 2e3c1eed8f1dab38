"""Tests the traces of jobs through a real door and real workers, as a collector receives them."""

import sys
import time
from collections.abc import Iterator

import pytest

from shared.accounts.tenants import Tenants
from shared.jobs.tenant_policy import TenantPolicy
from tests.support.collector import Collector, Received, TracingClient, one
from tests.support.gate import GateClient, a_gate, submit_frame
from tests.support.processes import Stage, in_time, wait_for
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


@pytest.fixture(scope="module")
def common(tmp_path_factory: pytest.TempPathFactory, collector: Collector) -> Iterator[Served]:
    """A door and a worker that send their traces to the collector."""
    with Stage(tmp_path_factory.mktemp("stage"), **SIM, **collector.environ) as stage:
        stage.worker()
        with Served(stage) as served:
            yield served


def outside_s(inner: Received, outer: Received) -> float:
    """Return for how long a span is outside another one."""
    return max(0.0, outer.begun_s - inner.begun_s, inner.ended_s - outer.ended_s)


def traced_chat(served: Served, collector: Collector, client: TracingClient) -> list[Received]:
    """Answer a chat of 60 words, and return the spans of its trace."""
    body = {"model": "sim", "messages": [{"role": "user", "content": "tell me a story"}], "max_tokens": 60}
    answer = served.http.post("/v1/chat/completions", json=body, headers=client.headers | {"X-Tenant": "blue"})
    assert answer.status_code == 200, answer.text
    return collector.wait_for(client.trace_id, REQUEST, ADMISSION, QUEUE, PREFILL, DECODE, DELIVERY, ATTEMPT)


def test_a_job_is_one_trace_from_the_client_to_the_delivery(served, collector):
    client = TracingClient()
    spans = traced_chat(served, collector, client)
    assert len(spans) == 7
    request, attempt = one(spans, REQUEST), one(spans, ATTEMPT)
    assert request.parent_id == client.span_id
    assert {one(spans, name).parent_id for name in (ADMISSION, QUEUE, ATTEMPT)} == {request.span_id}
    assert {one(spans, name).parent_id for name in (PREFILL, DECODE, DELIVERY)} == {attempt.span_id}
    assert {span.name for span in spans if span.service == "penstock-door"} == {REQUEST, ADMISSION}
    assert {span.service for span in spans} == {"penstock-door", "penstock-worker"}
    assert request.attributes["http.response.status_code"] == 200
    assert attempt.attributes["penstock.outcome"] == "succeeded"
    assert attempt.attributes["gen_ai.usage.output_tokens"] == 60
    assert {one(spans, name).attributes["penstock.tenant"] for name in (ADMISSION, QUEUE, ATTEMPT)} == {"blue"}
    assert not any(span.failed for span in spans)
    assert "story" not in str(spans)


def test_the_times_of_the_spans_are_those_of_the_stages(served, collector):
    def attempt():
        began_s = time.time()
        spans = traced_chat(served, collector, TracingClient())
        ended_s = time.time()
        request, job = one(spans, REQUEST), one(spans, ATTEMPT)
        yield max(began_s - request.begun_s, request.ended_s - ended_s), SLACK_S
        for name in (ADMISSION, QUEUE, PREFILL, DECODE):
            yield outside_s(one(spans, name), request), SLACK_S
        for name in (PREFILL, DECODE, DELIVERY):
            yield outside_s(one(spans, name), job), SLACK_S
        yield one(spans, QUEUE).ended_s - job.begun_s, SLACK_S
        decode = one(spans, DECODE)
        yield one(spans, PREFILL).ended_s - decode.begun_s, SLACK_S
        # The worker needs at least 0.3 s for 60 words.
        yield 0.3 - (decode.ended_s - decode.begun_s), 0.1

    in_time(attempt)


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
    client = TracingClient()
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
    client = TracingClient()
    assert served.http.post("/v1/jobs", json={"prompt": 7}, headers=client.headers).status_code == 422
    spans = collector.wait_for(client.trace_id, REQUEST)
    assert one(spans, REQUEST).attributes["http.response.status_code"] == 422


def test_a_canceled_job_has_an_attempt_that_was_canceled(served, collector):
    client = TracingClient()
    body = {"prompt": "a long one", "max_tokens": 2_000}
    job = served.http.post("/v1/jobs", json=body, headers=client.headers).json()
    wait_for(lambda: served.http.get(f"/v1/jobs/{job['id']}").json()["status"] == "running", "the job to run")
    served.http.delete(f"/v1/jobs/{job['id']}")
    spans = collector.wait_for(client.trace_id, REQUEST, QUEUE, ATTEMPT, outcome="canceled")
    assert one(spans, ATTEMPT).parent_id == one(spans, REQUEST).span_id


def test_a_client_that_does_not_want_a_trace_gets_none(served, collector):
    unwanted, wanted = TracingClient(sampled=False), TracingClient()
    for client in (unwanted, wanted):
        body = {"prompt": "hi", "max_tokens": 5}
        assert served.http.post("/v1/jobs?wait_ms=30000", json=body, headers=client.headers).status_code == 200
    collector.wait_for(wanted.trace_id, REQUEST, ATTEMPT)
    assert collector.trace(unwanted.trace_id) == []


def test_the_gate_continues_a_trace_and_sends_its_last_spans_before_it_stops(served, collector):
    client = TracingClient()
    # The next batch of spans would leave after an hour.
    gate, port = a_gate(served.stage, PENSTOCK_AUTH="open", OTEL_BSP_SCHEDULE_DELAY="3600000")
    with GateClient.at(port) as connection:
        frame = submit_frame() | client.headers
        assert connection.ask(frame)["status"] == "accepted"
        assert connection.read()["status"] == "succeeded"
    gate.terminate()
    assert gate.exit_code(timeout_s=60) == 0
    spans = collector.wait_for(client.trace_id, ADMISSION, QUEUE, ATTEMPT)
    assert {one(spans, name).parent_id for name in (ADMISSION, QUEUE, ATTEMPT)} == {client.span_id}


def test_a_door_or_a_worker_that_cannot_send_traces_as_it_is_told_does_not_start(served):
    for module in ("web", "web.gate", "workers"):
        process = served.stage.start(module, [sys.executable, "-P", "-m", module], OTEL_TRACES_EXPORTER="zipkin")
        assert process.exit_code(timeout_s=60) != 0
        log_text = process.log.read_text()
        assert "OTEL_TRACES_EXPORTER='zipkin' does not work with PENSTOCK_TRACES='on': use otlp" in log_text
        assert "Traceback" not in log_text


def test_a_door_sends_its_last_spans_before_it_stops(served, collector):
    client = TracingClient()
    with Served(served.stage, OTEL_BSP_SCHEDULE_DELAY="3600000") as door:
        assert door.http.post("/v1/jobs", json={"prompt": 7}, headers=client.headers).status_code == 422
        door.process.terminate()
        assert door.process.exit_code(timeout_s=60) == 0
    collector.wait_for(client.trace_id, REQUEST)
