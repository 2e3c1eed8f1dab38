"""Tests what traces need, and that they leave the client's context alone while they are off."""

import os
import subprocess
import sys

import pytest

from shared.errors import ConfigError
from shared.tracing.names import SpanName
from shared.tracing.spans import Traces
from shared.tracing.traces import check_traces, make_traces
from tests.support.collector import opentelemetry_path

SENT = f"00-{'a' * 32}-{'b' * 16}-01"


@pytest.fixture(autouse=True)
def opentelemetry() -> None:
    opentelemetry_path()


def test_without_traces_the_context_of_the_client_is_passed_on():
    traces = make_traces("penstock-door", on=False)
    assert type(traces) is Traces
    with traces.begin(SpanName.REQUEST, SENT, {}, serves=True) as span:
        span.set({})
        assert span.traceparent == SENT
    assert traces.record(SpanName.QUEUE, SENT, (1, 2), {}) == SENT
    traces.close()


def test_while_they_are_off_nothing_that_sends_them_is_imported():
    code = (
        "import sys, web.app, workers.__main__; from shared.tracing.traces import make_traces; "
        "make_traces('x', on=False); print({'opentelemetry.exporter', 'shared.tracing.otel'} & sys.modules.keys())"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env=os.environ | {"PYTHONPATH": opentelemetry_path()},
    )
    assert done.stdout.strip() == "set()"


def test_without_the_extra_the_error_names_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "shared.tracing.otel", None)
    with pytest.raises(ConfigError, match=r"PENSTOCK_TRACES='on' needs .* pip install 'penstock\[otel\]'"):
        check_traces(on=True)
    check_traces(on=False)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("OTEL_TRACES_EXPORTER", "zipkin"),
        ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc"),
        ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "x"),
    ],
)
def test_a_way_to_send_traces_that_is_not_built_in_is_quoted(monkeypatch, name, value):
    monkeypatch.setenv(name, value)
    with pytest.raises(ConfigError, match=f"{name}='{value}' does not work with PENSTOCK_TRACES='on'"):
        check_traces(on=True)


@pytest.mark.parametrize("sent", ["", "00-" + "0" * 32 + "-" + "b" * 16 + "-01", "ff-" + SENT[3:], "nothing"])
def test_a_context_that_is_no_context_begins_a_trace(monkeypatch, sent):
    # Nothing is sent.
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", "always_off")
    traces = make_traces("penstock-door", on=True)
    try:
        with traces.begin(SpanName.REQUEST, sent) as span:
            assert span.traceparent != sent
            assert span.traceparent.startswith("00-")
        assert traces.record(SpanName.QUEUE, SENT, (2, 1)).startswith(SENT[:35])
    finally:
        traces.close()
