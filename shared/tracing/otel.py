"""Writes spans with OpenTelemetry, as its OTEL_* environment variables say; only this file imports its packages."""

import os
import threading
from typing import Any

from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import SERVICE_NAME, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from shared.errors import ConfigError
from shared.tracing.names import NO_ATTRIBUTES, Attribute, Attributes, SpanName
from shared.tracing.spans import Span, Traces

#: How long `close` waits until the last spans are sent, in seconds. A collector that hangs may not hold up a stop.
_CLOSE_S = 3.0
_FIELD = "traceparent"
#: The variables that choose how traces are sent, and the values with which this file does it.
_WAYS = {
    "OTEL_TRACES_EXPORTER": {"", "otlp"},
    "OTEL_EXPORTER_OTLP_PROTOCOL": {"", "http/protobuf"},
    "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": {"", "http/protobuf"},
}

_context = TraceContextTextMapPropagator()


class OtelSpan(Span):
    """A span of OpenTelemetry."""

    def __init__(self, span: Any, parent: str) -> None:
        self._span, self._has_ended = span, False
        carrier: dict[str, str] = {}
        _context.inject(carrier, trace.set_span_in_context(span))
        super().__init__(carrier.get(_FIELD, parent))

    def set(self, attributes: Attributes, /) -> None:
        self._span.set_attributes(_given(attributes))

    def end(self, error: str = "", /, *, at_ns: int | None = None) -> None:
        if self._has_ended:
            return
        self._has_ended = True
        if error:
            self._span.set_attribute(Attribute.ERROR, error)
            self._span.set_status(trace.StatusCode.ERROR)
        self._span.end(at_ns)


class OtelTraces(Traces):
    """Sends spans in batches from a thread of its own, and drops spans if OTEL_BSP_MAX_QUEUE_SIZE of them wait."""

    is_on = True

    def __init__(self, service: str) -> None:
        """Raise ConfigError as `check_ways` does."""
        check_ways()
        named = {} if os.environ.get("OTEL_SERVICE_NAME") else {SERVICE_NAME: service}
        self._provider = TracerProvider(resource=Resource.create(named), shutdown_on_exit=False)
        self._provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
        self._tracer = self._provider.get_tracer("penstock")

    def begin(
        self, name: SpanName, parent: str, attributes: Attributes = NO_ATTRIBUTES, /, *, serves: bool = False
    ) -> OtelSpan:
        kind = trace.SpanKind.SERVER if serves else trace.SpanKind.INTERNAL
        return self._begin(name, parent, attributes, kind)

    def record(
        self, name: SpanName, parent: str, times_ns: tuple[int, int], attributes: Attributes = NO_ATTRIBUTES, /
    ) -> str:
        begun_ns, ended_ns = times_ns
        span = self._begin(name, parent, attributes, trace.SpanKind.INTERNAL, begun_ns)
        span.end(str(attributes.get(Attribute.ERROR) or ""), at_ns=max(begun_ns, ended_ns))
        return span.traceparent

    def close(self) -> None:
        """Send the remaining spans, for at most 3 s."""
        closing = threading.Thread(target=self._provider.shutdown, name="close-traces", daemon=True)
        closing.start()
        closing.join(_CLOSE_S)

    def _begin(
        self, name: SpanName, parent: str, attributes: Attributes, kind: trace.SpanKind, begun_ns: int | None = None
    ) -> OtelSpan:
        context = _context.extract({_FIELD: parent})
        return OtelSpan(self._tracer.start_span(name, context, kind, _given(attributes), start_time=begun_ns), parent)


def check_ways() -> None:
    """Raise ConfigError if the OTEL_* variables ask for a way to send traces that is not built in."""
    for name, values in _WAYS.items():
        if os.environ.get(name, "") not in values:
            allowed = " or ".join(sorted(values - {""}))
            raise ConfigError(f"{name}={os.environ[name]!r} does not work with PENSTOCK_TRACES='on': use {allowed}")


def _given(attributes: Attributes) -> dict[str, str | int]:
    return {str(name): value for name, value in attributes.items() if value is not None}
