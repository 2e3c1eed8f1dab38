"""Request id, log binding, and the metrics of this process. A failing metric never fails a request."""

import os
import platform
import re
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib.metadata import PackageNotFoundError, version

import structlog
from flask import Flask, Response, g, request
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Metric
from prometheus_client.registry import Collector

from shared import metrics as rows
from shared.clock import Clock

log = structlog.get_logger()

#: What a proxy or a client may call a request; anything else is replaced.
_REQUEST_ID = re.compile(r"[A-Za-z0-9._:=+/-]{1,128}\Z")
#: W3C trace context, version 00; other versions begin alike.
_TRACEPARENT = re.compile(r"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}\Z")
#: A client may invent methods; a label may not follow it.
_METHODS = frozenset({"GET", "HEAD", "POST", "DELETE", "OPTIONS", "PUT", "PATCH"})
_BUCKETS_S = tuple(ms / 1000 for ms in rows.BUCKETS_MS)
#: Round trips to a store next door are far below a request.
_SCRIPT_BUCKETS_S = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0)


def package_version() -> str:
    """The version of Penstock that runs."""
    try:
        return version("penstock")
    except PackageNotFoundError:
        return "0"


class OfProcess(Collector):
    """A registry whose samples say which process counted them: several answer at one address."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry

    def collect(self) -> Iterator[Metric]:
        """All families, each sample with the label `process`."""
        for family in self._registry.collect():
            family.samples = [
                sample._replace(labels={**sample.labels, "process": str(os.getpid())}) for sample in family.samples
            ]
            yield family


class DoorMetrics:
    """The process metrics of one app, in a registry of their own."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.registry = CollectorRegistry()
        self.requests = self._counter(rows.HTTP_REQUESTS)
        self.seconds = self._histogram(rows.HTTP_SECONDS, _BUCKETS_S)
        self.scripts = self._histogram(rows.SCRIPT_SECONDS, _SCRIPT_BUCKETS_S)
        self.storeless = self._counter(rows.STORELESS)
        self.followed = Gauge(rows.WAITING_CALLS.name, rows.WAITING_CALLS.help, registry=self.registry)
        build = Gauge(rows.BUILD_INFO.name, rows.BUILD_INFO.help, rows.BUILD_INFO.labels, registry=self.registry)
        build.labels(package_version(), platform.python_version()).set(1)

    def _counter(self, row: rows.Row) -> Counter:
        return Counter(row.name, row.help, row.labels, registry=self.registry)

    def _histogram(self, row: rows.Row, buckets: tuple[float, ...]) -> Histogram:
        return Histogram(row.name, row.help, row.labels, registry=self.registry, buckets=buckets)

    def shown(self) -> CollectorRegistry:
        """What a scrape of this process sees."""
        registry = CollectorRegistry(auto_describe=False)
        registry.register(OfProcess(self.registry))
        return registry

    @contextmanager
    def script(self, name: str) -> Iterator[None]:
        """Time one round trip to the store."""
        began_s = self.clock.monotonic()
        try:
            yield
        finally:
            with suppress(Exception):
                self.scripts.labels(name).observe(self.clock.monotonic() - began_s)


def given_request_id() -> str | None:
    """The request id that came with the request, if it is a fit one."""
    text = request.headers.get("x-request-id", "")
    return text if _REQUEST_ID.match(text) else None


def traceparent() -> str:
    """The trace context that came with the request, or ""."""
    text = request.headers.get("traceparent", "")
    return text if _TRACEPARENT.match(text) else ""


def install(app: Flask, metrics: DoorMetrics) -> None:
    """Give every request an id, bind it to the log, count and time every answer."""

    @app.before_request
    def begin() -> None:
        g.began_s = metrics.clock.monotonic()
        g.request_id = given_request_id() or secrets.token_hex(16)
        structlog.contextvars.clear_contextvars()
        structlog.contextvars.bind_contextvars(request_id=g.request_id)
        if traceparent():
            structlog.contextvars.bind_contextvars(traceparent=traceparent())

    @app.after_request
    def end(response: Response) -> Response:
        response.headers["x-request-id"] = g.get("request_id") or secrets.token_hex(16)
        with suppress(Exception):
            route = request.url_rule.rule if request.url_rule else "unknown"
            took_s = metrics.clock.monotonic() - g.began_s
            method = request.method if request.method in _METHODS else "other"
            metrics.requests.labels(route, method, str(response.status_code)).inc()
            metrics.seconds.labels(route, method).observe(took_s)
            log.debug("http", route=route, method=method, status=response.status_code, ms=round(took_s * 1000))
        return response
