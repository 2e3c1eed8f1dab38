"""The metrics of one ingress process."""

import os
import platform
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib.metadata import PackageNotFoundError, version

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Metric
from prometheus_client.registry import Collector

from shared import metrics as rows
from shared.clock import Clock

_BUCKETS_S = tuple(ms / 1000 for ms in rows.BUCKETS_MS)


#: Round trips to a store next door are far below a request.
_SCRIPT_BUCKETS_S = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0)


def package_version() -> str:
    """The version of Penstock that runs."""
    try:
        return version("penstock")
    except PackageNotFoundError:
        return "0"


class ProcessLabelCollector(Collector):
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


class ProcessMetrics:
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

    def _counter(self, row: rows.MetricSpec) -> Counter:
        return Counter(row.name, row.help, row.labels, registry=self.registry)

    def _histogram(self, row: rows.MetricSpec, buckets: tuple[float, ...]) -> Histogram:
        return Histogram(row.name, row.help, row.labels, registry=self.registry, buckets=buckets)

    def scrape_registry(self) -> CollectorRegistry:
        """What a scrape of this process sees."""
        registry = CollectorRegistry(auto_describe=False)
        registry.register(ProcessLabelCollector(self.registry))
        return registry

    @contextmanager
    def time_script(self, name: str) -> Iterator[None]:
        """Time one round trip to the store."""
        began_s = self.clock.monotonic()
        try:
            yield
        finally:
            with suppress(Exception):
                self.scripts.labels(name).observe(self.clock.monotonic() - began_s)
