"""The page /metrics of a door: the metrics of all HTTP processes of this start, added up and rendered with pauses.

Anybody may request this page, and its cost grows with the number of processes. So a process renders one page at a
time, other greenlets run in between, and after each page it pauses for several times as long as the page took.
Requests that arrive in the meantime share the next page. Its values are read after all of them have arrived, so no
counter falls, although the next scrape may be answered by another process, which shares its pages with others.
"""

import json
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path

from prometheus_client import Metric
from prometheus_client.mmap_dict import MmapedDict
from prometheus_client.registry import Collector
from prometheus_client.samples import Sample

from shared.clock import Clock
from web.http.metric_files import shared_folder
from web.http.process_metrics import ProcessMetrics
from web.runtime.fleet_metrics import Format, ReadFamilies, encoded, with_pauses

#: After a page, none is rendered for this many times the processor time that it took, so that pages take a fifth of a
#: process's time at most; but for no longer than MAX_PAUSE_S, because scrapers give up after some seconds.
_PAUSE_RATIO, MAX_PAUSE_S = 4, 1.0


@dataclass
class _Round:
    """One page that is or will be rendered, for all requests that arrived before its values are read."""

    #: The formats that were asked for. It changes under the lock of the page, until the values are read.
    formats: set[Format] = field(default_factory=set)
    pages: "Future[dict[Format, bytes]]" = field(default_factory=Future)


class ProcessPage:
    """Renders the metrics of all processes of this start, or those of this process if it shares no files."""

    def __init__(
        self, metrics: ProcessMetrics, clock: Clock, cpu_time_s: Callable[[], float] = time.thread_time
    ) -> None:
        """`cpu_time_s` returns the processor time that this thread has used, in seconds."""
        self._metrics, self._clock, self._cpu_time_s = metrics, clock, cpu_time_s
        self._folder: FolderMetrics | None = None
        self._lock = threading.Lock()
        #: Held by the request that renders, and while it waits for the end of the pause.
        self._rendering = threading.Lock()
        self._next: _Round | None = None
        self._pause_ends_s = 0.0

    def render(self, page_format: Format) -> bytes:
        """Return the page; its values are read after this was called. Waits for the page before it, and the pause."""
        with self._lock:
            leads = self._next is None
            shared = self._next = self._next or _Round()
            shared.formats.add(page_format)
        if leads:
            self._lead(shared)
        return shared.pages.result()[page_format]

    def _lead(self, shared: _Round) -> None:
        try:
            with self._rendering:
                time.sleep(max(0.0, self._pause_ends_s - self._clock.monotonic()))
                self._close(shared)
                pages = self._measured(shared.formats)
        except BaseException as error:
            # Also when this greenlet is killed: otherwise, the requests that share its page would wait forever.
            self._close(shared)
            shared.pages.set_exception(error)
            if not isinstance(error, Exception):
                raise
        else:
            shared.pages.set_result(pages)

    def _close(self, shared: _Round) -> None:
        """Let later requests begin another round."""
        with self._lock:
            if self._next is shared:
                self._next = None

    def _measured(self, formats: Iterable[Format]) -> dict[Format, bytes]:
        began_s = self._cpu_time_s()
        try:
            return self._render(formats)
        finally:
            pause_s = min(MAX_PAUSE_S, _PAUSE_RATIO * (self._cpu_time_s() - began_s))
            self._pause_ends_s = self._clock.monotonic() + pause_s

    def _render(self, formats: Iterable[Format]) -> dict[Format, bytes]:
        if self._folder is None and (path := shared_folder()) is not None:
            self._folder = FolderMetrics(path)
        families = ReadFamilies((self._folder or self._metrics.registry).collect())
        return {page_format: encoded(families, page_format) for page_format in formats}


@dataclass(frozen=True)
class _Key:
    """The key of a value, as prometheus-client writes it."""

    metric_name: str
    name: str
    labels: dict[str, str]
    help: str


class FolderMetrics(Collector):
    """Reads the metrics of all processes of this start: counters and histograms of all, gauges of the living ones.

    prometheus-client's own collector does so in one piece, which takes half a second for 64 processes.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        #: The keys that were read so far. There are as many as the page has series.
        self._keys: dict[str, _Key] = {}

    def collect(self) -> Iterator[Metric]:
        """Yield all metric families.

        Files are read in a fixed order: the sum of the same floats in another order can be lower, and Prometheus would
        take the lower value for a restart.
        """
        values: dict[str, dict[str, float]] = {}
        for file in sorted(self._folder.glob("*.db")):
            # The name is the kind, "_", the place and ".db".
            kind = file.name.rpartition("_")[0]
            _add_up(file, kind, values.setdefault(kind, {}))
        for kind, by_key in values.items():
            yield from self._families(kind.partition("_")[0], by_key)

    def _families(self, kind: str, by_key: dict[str, float]) -> Iterator[Metric]:
        families: dict[str, Metric] = {}
        buckets: dict[str, list[tuple[float, Sample]]] = {}
        sums: dict[str, Sample] = {}
        for key, value in with_pauses(by_key.items()):
            parsed = self._keys.get(key)
            if parsed is None:
                parsed = self._keys[key] = _Key(*json.loads(key))
            family = families.setdefault(parsed.metric_name, Metric(parsed.metric_name, parsed.help, kind))
            sample = Sample(parsed.name, parsed.labels, value)
            if "le" in parsed.labels:
                series = f"{parsed.metric_name}{_without_bound(parsed.labels)}"
                buckets.setdefault(series, []).append((float(parsed.labels["le"]), sample))
            elif kind == "histogram":
                sums[f"{parsed.metric_name}{parsed.labels}"] = sample
            else:
                family.samples.append(sample)
        # In OpenMetrics, the samples of a series stand together.
        for series, of_series in with_pauses(buckets.items(), every=10):
            metric_name = of_series[0][1].name.removesuffix("_bucket")
            families[metric_name].samples += _cumulated(metric_name, of_series)
            families[metric_name].samples += [sums[series]] if series in sums else []
        yield from families.values()


def _add_up(file: Path, kind: str, values: dict[str, float]) -> None:
    """Add the values in the file of one process to those of the processes before."""
    try:
        read = MmapedDict.read_all_values_from_file(str(file))  # type: ignore[no-untyped-call]  # has no types
    except FileNotFoundError:
        # The master process removes the gauges of a process that has ended.
        if kind.startswith("gauge"):
            return
        raise
    for key, value, _, _ in with_pauses(read):
        values[key] = max(values.get(key, value), value) if kind == "gauge_livemax" else values.get(key, 0.0) + value


def _cumulated(metric_name: str, buckets: list[tuple[float, Sample]]) -> Iterator[Sample]:
    """Yield the buckets of one series, each with the sum of the smaller ones, and their count."""
    count = 0.0
    for _, sample in sorted(buckets, key=lambda bucket: bucket[0]):
        count += sample.value
        yield Sample(sample.name, sample.labels, count)
    yield Sample(f"{metric_name}_count", _without_bound(buckets[0][1].labels), count)


def _without_bound(labels: dict[str, str]) -> dict[str, str]:
    """Return the labels of the series to which a bucket belongs."""
    return {name: label for name, label in labels.items() if name != "le"}
