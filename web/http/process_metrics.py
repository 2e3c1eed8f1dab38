"""The Prometheus metrics of one process of the door: an HTTP process or the gate."""

import platform
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from functools import cache
from typing import Literal

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from shared.clock import Clock
from shared.metrics import process as specs
from shared.metrics.spec import BUCKETS_MS, MetricSpec
from shared.version import package_version
from web.http.connection_bounds import DoorBound

_BUCKETS_S = tuple(ms / 1000 for ms in BUCKETS_MS)
#: The buckets for round trips to the store. They begin at smaller values than the buckets for requests, because a round
#: trip to a nearby store takes far less time than a request.
_SCRIPT_BUCKETS_S = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0)

#: The buckets for the search of passages, around its usual budget of 40 ms and what it may exceed that by.
_RETRIEVAL_BUCKETS_S = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.03, 0.04, 0.05, 0.075, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)


class ProcessMetrics:
    """The metrics that one process counts, which have their own registry."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.registry = CollectorRegistry()
        self.requests = self.counter(specs.HTTP_REQUESTS)
        self.request_seconds = self.histogram(specs.HTTP_SECONDS, _BUCKETS_S)
        self.script_seconds = self.histogram(specs.SCRIPT_SECONDS, _SCRIPT_BUCKETS_S)
        #: Their series by labels. The metrics themselves take a lock to find one.
        self._requests, self._request_seconds = cache(self.requests.labels), cache(self.request_seconds.labels)
        self._script_seconds = cache(self.script_seconds.labels)
        self.refused_without_store = self.counter(specs.REFUSED_WITHOUT_STORE)
        self.failed_keys = self.counter(specs.FAILED_KEYS)
        self.turned_away = self.counter(specs.TURNED_AWAY)
        for bound in DoorBound:
            # An alert would miss the first count of a series that did not exist before.
            self.turned_away.labels(bound.value)
        self.ignored_fields = self.counter(specs.IGNORED_FIELDS)
        self.retrieval_seconds = self.histogram(specs.RETRIEVAL_SECONDS, _RETRIEVAL_BUCKETS_S)
        self.retrieval_passages = self.counter(specs.RETRIEVAL_PASSAGES)
        self.retrieval_fallbacks = self.counter(specs.RETRIEVAL_FALLBACKS)
        # As above.
        self.retrieval_seconds.labels("search")
        for why in ("budget", "database_away", "searches_stopped", "embedding_away"):
            self.retrieval_fallbacks.labels("none", why)
        self.file_loads = self.counter(specs.FILE_LOADS)
        for result in ("completed", "given_back", "server_error", "unsupported_file", "invalid_file"):
            self.file_loads.labels(result)
        self.passage_cache = self.counter(specs.PASSAGE_CACHE)
        self.passage_cache_bytes = self.counter(specs.PASSAGE_CACHE_BYTES)
        self.semantic_cache = self.counter(specs.SEMANTIC_CACHE)
        self.semantic_cache_seconds = self.histogram(specs.SEMANTIC_CACHE_SECONDS, _RETRIEVAL_BUCKETS_S)
        self.semantic_cache_bytes = self.counter(specs.SEMANTIC_CACHE_BYTES)
        self.alerts = self.counter(specs.ALERTS)
        self.spills = self.counter(specs.SPILLS)
        self.connections = self.gauge(specs.HTTP_CONNECTIONS)
        self.followed_jobs = self.gauge(specs.FOLLOWED_JOBS)
        #: The number of jobs that each hub follows; there is one for each cell.
        self._followed: dict[object, int] = {}
        # Several processes of one version are one build, so their values are not added up.
        build = self.gauge(specs.BUILD_INFO, "livemax")
        build.labels(package_version(), platform.python_version()).set(1)

    def counter(self, spec: MetricSpec) -> Counter:
        """Return a new counter of this process."""
        return Counter(spec.name, spec.help, spec.labels, registry=self.registry)

    def gauge(self, spec: MetricSpec, of_processes: Literal["livesum", "livemax"] = "livesum") -> Gauge:
        """Return a new gauge of this process; `of_processes` says how those of several processes become one."""
        return Gauge(spec.name, spec.help, spec.labels, registry=self.registry, multiprocess_mode=of_processes)

    def histogram(self, spec: MetricSpec, buckets: tuple[float, ...]) -> Histogram:
        """Return a new histogram of this process."""
        return Histogram(spec.name, spec.help, spec.labels, registry=self.registry, buckets=buckets)

    def count_request(self, route: str, method: str, status: int, took_s: float) -> None:
        """Count an answered request. `route` and `method` are labels, so there must be few of them."""
        self._requests(route, method, str(status)).inc()
        self._request_seconds(route, method).observe(took_s)

    def show_connections(self, number: int) -> None:
        """Show how many connections are open. An error of the metrics package does not affect the connection."""
        with suppress(Exception):
            self.connections.set(number)

    def show_followed(self, hub: object, jobs: int) -> None:
        """Show how many jobs the hubs of this process follow, one of them that many.

        An error of the metrics package does not affect the followers.
        """
        self._followed[hub] = jobs
        if not jobs:
            # A cell that leaves the directory must not be kept here.
            del self._followed[hub]
        with suppress(Exception):
            self.followed_jobs.set(sum(self._followed.values()))

    def count_turned_away(self, code: str) -> None:
        """Count a connection or request that would have exceeded a bound; do nothing if `code` is another error."""
        if code in set(DoorBound):
            self.turned_away.labels(code).inc()

    def count_retrieval(self, source: str, why: str | None, passages: int, took_s: float) -> None:
        """Count the search for a request's passages, which took this long; `why` it was not a whole search, or None."""
        with suppress(Exception):
            self.retrieval_seconds.labels(source).observe(took_s)
            self.retrieval_passages.inc(passages)
            self.passage_cache.labels("hit" if source == "cache" else "miss").inc()
            if why is not None:
                self.retrieval_fallbacks.labels(source, why).inc()

    def count_file_load(self, result: str) -> None:
        """Count the end of the load of a file of a vector store."""
        with suppress(Exception):
            self.file_loads.labels(result).inc()

    def count_cached_passages(self, n_bytes: int) -> None:
        """Count bytes of passages that were stored in the cache."""
        with suppress(Exception):
            self.passage_cache_bytes.inc(n_bytes)

    def count_semantic_look_up(self, result: str, took_s: float) -> None:
        """Count a look-up in the semantic cache, which took this long."""
        with suppress(Exception):
            self.semantic_cache.labels(result).inc()
            self.semantic_cache_seconds.observe(took_s)

    def count_cached_answer(self, n_bytes: int) -> None:
        """Count bytes of an answer that was stored in the semantic cache."""
        with suppress(Exception):
            self.semantic_cache_bytes.inc(n_bytes)

    def count_failed_key(self, code: str, *, limited: bool) -> None:
        """Count a key that was not valid. An error of the metrics package does not affect the request."""
        with suppress(Exception):
            self.failed_keys.labels(code, "yes" if limited else "no").inc()

    def time_script(self, name: str) -> AbstractContextManager[None]:
        """Measure how long the `with` block takes, which is one round trip to the store for the script `name`."""
        return _ScriptTime(self.clock, self._script_seconds, name)


class _ScriptTime:
    """Measures one block. A generator for this would take as long as a metric."""

    def __init__(self, clock: Clock, series: Callable[[str], Histogram], name: str) -> None:
        self._clock, self._series, self._name = clock, series, name

    def __enter__(self) -> None:
        self._began_s = self._clock.monotonic()

    def __exit__(self, *_: object) -> None:
        with suppress(Exception):
            self._series(self._name).observe(self._clock.monotonic() - self._began_s)
