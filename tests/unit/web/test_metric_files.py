"""The folder of metrics of one start: its places, and what happens to folders of starts that were killed."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.scrapes import Scrape, parse
from web.http.metric_files import MetricFiles

#: The metrics of a process at the place in argv[2], which it prints at the end. argv[3] is an amount in seconds.
_PROCESS = """
import os, sys
from pathlib import Path
from shared.clock import RealClock
from web.http.metric_files import MetricFiles
files = MetricFiles(Path(sys.argv[1]), os.getuid(), os.getgid(), None, 0)
files.join(int(sys.argv[2]))
from web.http.process_metrics import ProcessMetrics
from web.runtime.process_page import ProcessPage
metrics = ProcessMetrics(RealClock())
metrics.requests.labels("/a", "GET", "200").inc()
metrics.request_seconds.labels("/a", "GET").observe(float(sys.argv[3]))
metrics.show_connections(2)
sys.stdout.write(ProcessPage(metrics, RealClock()).render("text").decode())
"""


@pytest.fixture
def create(tmp_path: Path) -> Iterator[Callable[[], MetricFiles]]:
    """A function that creates a folder of metrics below the test's folder."""
    created: list[MetricFiles] = []

    def create() -> MetricFiles:
        created.append(MetricFiles.create(os.getuid(), os.getgid(), (str(tmp_path),)))
        return created[-1]

    yield create
    for files in created:
        if files.path.exists():
            files.remove()


def run_process(files: MetricFiles, place: int, seconds: float = 0.1) -> Scrape:
    """Run a process that counts one request at the place and then dies; return what it shows last."""
    arguments = [sys.executable, "-P", "-c", _PROCESS, str(files.path), str(place), str(seconds)]
    return parse(subprocess.run(arguments, check=True, capture_output=True, text=True, timeout=60).stdout)


def make_old(path: Path) -> None:
    os.utime(path, (0, 0))


def test_a_process_that_takes_over_a_place_goes_on_with_its_counters_and_not_with_its_gauges(
    create: Callable[[], MetricFiles],
) -> None:
    files = create()
    assert [files.take_place(()), files.take_place((0,))] == [0, 1]
    run_process(files, 0)
    seen = run_process(files, 1)
    assert seen.total("penstock_http_requests_total") == 2
    assert seen.total("penstock_http_connections") == 4
    files.end_gauges(0)
    assert files.take_place((1, None, 7)) == 0
    seen = run_process(files, 0)
    assert seen.total("penstock_http_requests_total") == 3
    assert seen.total("penstock_http_request_seconds_count") == 3
    assert seen.total("penstock_http_connections") == 4
    assert seen.total("penstock_build_info") == 1
    # As many files as for two processes, although three have run.
    assert len(list(files.path.glob("*.db"))) == 8


def test_a_sum_of_seconds_does_not_fall_when_a_process_is_added(create: Callable[[], MetricFiles]) -> None:
    # 0.1 + 0.2 + 0.3 is greater than 0.3 + 0.2 + 0.1, so a sum in any order could fall although nothing was subtracted.
    files = create()
    sums = []
    for place, seconds in enumerate([0.1, 0.2, 0.3, 1e-9, 0.7]):
        assert files.take_place(range(place)) == place
        sums.append(run_process(files, place, seconds).total("penstock_http_request_seconds_sum"))
    assert sums == sorted(sums)


def test_the_files_of_a_place_are_never_empty(create: Callable[[], MetricFiles]) -> None:
    files = create()
    files.take_place(())
    assert {file.name: file.stat().st_size for file in files.path.glob("*.db")} == dict.fromkeys(
        ["counter_0.db", "histogram_0.db", "gauge_livesum_0.db", "gauge_livemax_0.db"], 65_536
    )


def test_the_folder_of_a_start_that_was_killed_is_removed_by_the_next_start(
    create: Callable[[], MetricFiles], tmp_path: Path
) -> None:
    living, killed = create(), create()
    # The kernel closes the lock of a process that is killed.
    os.close(killed._lock.fd)
    unfinished = tmp_path / "penstock-metrics-unfinished"
    unfinished.mkdir()
    not_ours = tmp_path / "penstock-metrics-link"
    not_ours.symlink_to(tmp_path)
    for path in (living.path, killed.path, unfinished):
        make_old(path)
    create()
    assert living.path.exists()
    assert not killed.path.exists()
    assert unfinished.exists()
    assert not_ours.is_symlink()


def test_the_next_parent_is_used_if_one_cannot_be(tmp_path: Path) -> None:
    with pytest.raises(OSError, match=r"no folder for the files of metrics can be created: .*missing: No such file"):
        MetricFiles.create(os.getuid(), os.getgid(), (str(tmp_path / "missing"),))
    files = MetricFiles.create(os.getuid(), os.getgid(), (str(tmp_path / "missing"), str(tmp_path)))
    assert files.path.parent == tmp_path
    files.remove()
    assert not files.path.exists()
