"""The page /metrics of a door: what it costs the process, and who shares it."""

import os
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import values
from prometheus_client.mmap_dict import MmapedDict
from prometheus_client.multiprocess import MultiProcessCollector
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from shared.clock import ManualClock, RealClock
from tests.support.processes import wait_for
from tests.support.scrapes import parse
from web.http.metric_files import MetricFiles
from web.http.process_metrics import ProcessMetrics
from web.runtime import fleet_metrics, process_page
from web.runtime.fleet_metrics import Format
from web.runtime.process_page import FolderMetrics, ProcessPage


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[MetricFiles]:
    """The folder of 16 processes, to which this process belongs."""
    monkeypatch.setenv("PROMETHEUS_MULTIPROC_DIR", str(tmp_path))
    monkeypatch.setattr(values, "ValueClass", values.ValueClass)
    files = MetricFiles.create(os.getuid(), os.getgid(), 16, (str(tmp_path),))
    for place in range(16):
        assert files.take_place(range(place)) == place
        files.join(place)
        metrics = ProcessMetrics(RealClock())
        for number in range(20):
            metrics.requests.labels(f"/{number}", "GET", "200").inc(place)
            metrics.request_seconds.labels(f"/{number}", "GET").observe(0.1 * number + 1e-9 * place)
        metrics.show_connections(place)
    yield files
    files.remove()


def counted_page() -> tuple[ProcessPage, ProcessMetrics]:
    """A page that costs no time, so there is no pause after it, and the metrics of this process."""
    metrics = ProcessMetrics(RealClock())
    return ProcessPage(metrics, RealClock(), lambda: 0.0), metrics


def test_the_page_has_the_same_values_as_that_of_prometheus_client(files: MetricFiles) -> None:
    theirs = {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in MultiProcessCollector.merge(sorted(str(file) for file in files.path.glob("*.db")))  # type: ignore[no-untyped-call]  # has no types
        for sample in family.samples
    }
    page, _ = counted_page()
    assert parse(page.render("text").decode()).values == theirs
    # The parser of OpenMetrics also checks that the samples of each series stand together.
    openmetrics = text_string_to_metric_families(page.render("openmetrics").decode())  # type: ignore[no-untyped-call]  # has no types
    read = {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in openmetrics
        for sample in family.samples
    }
    assert read == theirs


def test_other_greenlets_run_while_the_page_is_rendered(files: MetricFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    page, _ = counted_page()
    turns: list[float] = []
    monkeypatch.setattr(time, "sleep", turns.append)
    lines = page.render("text").count(b"\n")
    read = sum(len(list(MmapedDict.read_all_values_from_file(str(file)))) for file in files.path.glob("*.db"))  # type: ignore[no-untyped-call]  # has no types
    # Without the first, which is the pause before the page. There are at least as many items as values of all files and
    # lines, and the last turns of a file and of a family are shorter.
    assert len(turns[1:]) >= read / 200 - 16 * 4
    assert len(turns[1:]) > lines / 200
    assert min(turns[1:]) > 0


class Held:
    """Takes the place of the files; each reading waits until it is let through."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, files: MetricFiles) -> None:
        self.readings, self.most, self._now = 0, 0, 0
        self.gate = threading.Event()
        collect: Any = FolderMetrics.collect

        def held(folder: FolderMetrics) -> Any:
            self.readings += 1
            self._now += 1
            self.most = max(self.most, self._now)
            assert self.gate.wait(20)
            try:
                return list(collect(folder))
            finally:
                self._now -= 1

        monkeypatch.setattr(process_page.FolderMetrics, "collect", held)


def waiting_for_next(page: ProcessPage) -> int:
    """Return how many requests share the next page, without the one that will render it."""
    pages: Any = page._next.pages if page._next is not None else None
    return 0 if pages is None else len(pages._condition._waiters)


def test_requests_during_a_page_share_the_next_one_and_see_what_was_counted_before_they_came(
    files: MetricFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = Held(monkeypatch, files)
    page, metrics = counted_page()
    formats: list[Format] = ["text", "openmetrics"] * 8
    with ThreadPoolExecutor(20) as pool:
        first = pool.submit(page.render, "text")
        wait_for(lambda: held.readings == 1, "the first page to be begun")
        metrics.requests.labels("/late", "GET", "200").inc()
        late = [pool.submit(page.render, one) for one in formats]
        wait_for(lambda: waiting_for_next(page) == len(late) - 1, "all but the one that will render to wait for it")
        held.gate.set()
        first.result(20)
        assert all(b'route="/late"' in one.result(20) for one in late)
    assert (held.readings, held.most) == (2, 1)


def test_pages_take_a_fifth_of_a_processs_time_at_most(monkeypatch: pytest.MonkeyPatch, files: MetricFiles) -> None:
    used_s, slept_s, clock = iter([0.0, 0.1, 0.1, 0.9, 0.9, 0.9]), [], ManualClock()
    page = ProcessPage(ProcessMetrics(clock), clock, lambda: next(used_s))
    for module in (process_page, fleet_metrics):
        monkeypatch.setattr(module, "with_pauses", lambda items, every=0: items)
    monkeypatch.setattr(time, "sleep", slept_s.append)
    for _ in range(3):
        page.render("text")
    assert slept_s == pytest.approx([0, 0.4, 1.0])


def test_an_error_reaches_all_that_share_the_page_and_the_next_request_reads_again(
    files: MetricFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    page, _ = counted_page()
    with monkeypatch.context() as patch:
        patch.setattr(process_page.FolderMetrics, "collect", lambda _: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            page.render("text")
    assert b"penstock_http_requests_total" in page.render("text")
