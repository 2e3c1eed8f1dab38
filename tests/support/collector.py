"""A collector of traces: a real OTLP/HTTP server that keeps the spans that it is sent."""

import gzip
import os
import secrets
import sys
import threading
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

from tests.support.background_server import BackgroundServer
from tests.support.processes import wait_for

#: `make test` installs OpenTelemetry here. Where `make otel` has installed it too, this folder need not exist.
_INSTALLED = Path(sys.prefix) / "traces"


def opentelemetry_path() -> str:
    """Return the import path with OpenTelemetry for another process, and put OpenTelemetry on that of this one."""
    if str(_INSTALLED) not in sys.path:
        sys.path.append(str(_INSTALLED))
    return f"{os.environ['PYTHONPATH']}{os.pathsep}{_INSTALLED}"


@dataclass(frozen=True)
class Received:
    """One span."""

    name: str
    service: str
    trace_id: str
    span_id: str
    parent_id: str
    begun_s: float
    ended_s: float
    attributes: dict[str, str | int]
    failed: bool


class Collector(BackgroundServer):
    """The server."""

    def __init__(self) -> None:
        self.spans: list[Received] = []
        self.asked = threading.Event()
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                if self.headers.get("Content-Encoding") == "gzip":
                    body = gzip.decompress(body)
                collector.asked.set()
                collector.may_answer.wait(120)
                collector.spans += _parse(body)
                self.send_response(200)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_: Any) -> None:
                pass

        super().__init__(Handler)

    @property
    def environ(self) -> dict[str, str]:
        """The environment of a process that sends its traces here, soon."""
        return {
            "PENSTOCK_TRACES": "on",
            "PYTHONPATH": opentelemetry_path(),
            "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{self.port}",
            "OTEL_BSP_SCHEDULE_DELAY": "100",
        }

    def trace(self, trace_id: str) -> list[Received]:
        """Return the spans of a trace that have arrived, in the order in which they began."""
        return sorted((span for span in self.spans if span.trace_id == trace_id), key=lambda span: span.begun_s)

    def wait_for(self, trace_id: str, *names: str, **attributes: str | int) -> list[Received]:
        """Wait until a trace has spans with these names, and one with the last name has these attributes."""

        def found() -> bool:
            spans = self.trace(trace_id)
            last = [span for span in spans if span.name == names[-1]]
            has_all = set(names) <= {span.name for span in spans}
            return has_all and any(attributes.items() <= _short(span.attributes).items() for span in last)

        wait_for(found, f"{names} of {trace_id} with {attributes}", timeout_s=60)
        return self.trace(trace_id)


class TracingClient:
    """A client that traces its requests: it names its own span in each."""

    def __init__(self, *, sampled: bool = True) -> None:
        self.trace_id, self.span_id = secrets.token_hex(16), secrets.token_hex(8)
        self.headers = {"traceparent": f"00-{self.trace_id}-{self.span_id}-{'01' if sampled else '00'}"}


def one(spans: list[Received], name: str) -> Received:
    """Return the only span with this name."""
    (found,) = [span for span in spans if span.name == name]
    return found


def _short(attributes: dict[str, str | int]) -> dict[str, str | int]:
    """Return attributes by the last parts of their names."""
    return {name.rpartition(".")[2]: value for name, value in attributes.items()}


def _parse(body: bytes) -> list[Received]:
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

    found = []
    for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
        service = next(each.value.string_value for each in resource.resource.attributes if each.key == "service.name")
        for scope in resource.scope_spans:
            for span in scope.spans:
                attributes = {
                    each.key: each.value.string_value if each.value.HasField("string_value") else each.value.int_value
                    for each in span.attributes
                }
                ids = span.trace_id.hex(), span.span_id.hex(), span.parent_span_id.hex()
                times = span.start_time_unix_nano / 1e9, span.end_time_unix_nano / 1e9
                found.append(Received(span.name, service, *ids, *times, attributes, span.status.code == 2))
    return found
