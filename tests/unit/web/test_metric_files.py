"""The folder of metrics of one start: its places, and what happens to folders of starts that were killed."""

import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from shared.settings.settings import Settings
from shared.store.store import Store
from tests.support.door import a_door
from tests.support.scrapes import Scrape, parse
from web.http.metric_files import FILE_BYTES, PLACE_BYTES, MetricFiles

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


#: Counts one request of each route, method and status, and one round trip of each script. The routes are in stdin.
_ALL_SERIES = """
import json, os, sys
from pathlib import Path
from shared.clock import RealClock
from web.http.metric_files import MetricFiles
MetricFiles(Path(sys.argv[1]), os.getuid(), os.getgid(), None, 0).join(0)
from web.http.process_metrics import ProcessMetrics
metrics = ProcessMetrics(RealClock())
statuses = [200, 202, 204, 302, 304, 308, 400, 401, 403, 404, 405, 409, 413, 415, 421, 422, 429, 500, 502, 503, 504]
routes = json.load(sys.stdin) + [["unknown", ["GET", "HEAD", "POST", "DELETE", "OPTIONS", "PUT", "PATCH", "other"]]]
for route, methods in routes:
    for method in methods:
        metrics.request_seconds.labels(route, method).observe(1)
        for status in statuses:
            metrics.requests.labels(route, method, str(status)).inc()
for number in range(50):
    metrics.script_seconds.labels(f"script_{number:020}").observe(1)
"""

#: Lists the folder, changes a file of it and tries to put a link into it, as a process that a stranger controls.
_WITHOUT_RIGHTS = """
import os, sys
folder = sys.argv[1]
os.setgroups([])
os.setgid(65_534)
os.setuid(65_534)
names = sorted(name for name in os.listdir(folder) if name.endswith(".db"))
print("\\n".join(names))
with open(f"{folder}/counter_0.db", "r+b") as file:
    file.write(b"none")
try:
    os.symlink("/etc/passwd", f"{folder}/fresh")
except OSError as error:
    print(error.errno)
"""

#: Runs gunicorn's hooks of a start that has no folder.
_HOOKS = """
import types
from web import gunicorn_conf as conf
from web.http.metric_files import MetricFiles
def create(*_):
    raise OSError("no room")
MetricFiles.create = create
log = types.SimpleNamespace(warning=lambda text, *values: print(text % values))
server = types.SimpleNamespace(cfg=types.SimpleNamespace(uid=0, gid=0), log=log, WORKERS={})
worker = types.SimpleNamespace()
conf.when_ready(server)
conf.pre_fork(server, worker)
conf.post_fork(server, worker)
conf.child_exit(server, worker)
conf.on_exit(server)
print(worker.metric_place)
print(server.metric_files)
"""


@pytest.fixture
def create(tmp_path: Path) -> Iterator[Callable[[], MetricFiles]]:
    """A function that creates a folder of metrics below the test's folder."""
    created: list[MetricFiles] = []

    def create() -> MetricFiles:
        created.append(MetricFiles.create(os.getuid(), os.getgid(), 2, (str(tmp_path),)))
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


def test_a_process_that_takes_over_a_place_keeps_its_counters_but_not_its_gauges(
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


def test_the_space_of_the_files_of_a_place_is_reserved_before_a_process_writes_to_them(
    create: Callable[[], MetricFiles],
) -> None:
    files = create()
    files.take_place(())
    assert {file.name: file.stat().st_size for file in files.path.glob("*.db")} == {
        f"{kind}_0.db": size_bytes for kind, size_bytes in FILE_BYTES.items()
    }
    for file in files.path.glob("*.db"):
        assert file.stat().st_blocks * 512 >= file.stat().st_size


def test_the_series_of_all_routes_methods_statuses_and_scripts_fit_into_the_files(
    create: Callable[[], MetricFiles], store: Store, settings: Settings
) -> None:
    app = a_door(store, settings).application
    routes = [(rule.rule, sorted(rule.methods or ())) for rule in app.url_map.iter_rules()]
    files = create()
    files.take_place(())
    arguments = [sys.executable, "-P", "-c", _ALL_SERIES, str(files.path)]
    subprocess.run(arguments, check=True, input=json.dumps(routes), text=True, timeout=120)
    for file in files.path.glob("*_0.db"):
        assert file.stat().st_size == FILE_BYTES[file.name.removesuffix("_0.db")]
    page = (files.path / "histogram_0.db").read_bytes()
    assert page.count(b"penstock_http_request_seconds_bucket") > 18 * len(routes)


def test_without_room_for_twice_the_processes_no_folder_is_created(tmp_path: Path) -> None:
    many = shutil.disk_usage(tmp_path).total // PLACE_BYTES
    with pytest.raises(OSError, match=r"no folder .*has less than \d+ MiB of free space"):
        MetricFiles.create(os.getuid(), os.getgid(), many, (str(tmp_path),))
    assert list(tmp_path.iterdir()) == []


def test_a_place_whose_space_cannot_be_reserved_is_refused_and_leaves_nothing(
    create: Callable[[], MetricFiles],
) -> None:
    files = create()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (FILE_BYTES["counter"] - 1, hard))
    try:
        with pytest.raises(OSError, match="File too large"):
            files.take_place(())
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert [file.name for file in files.path.iterdir()] == ["lock"]
    assert files.take_place(()) == 0


def test_a_link_in_the_folder_is_not_followed(create: Callable[[], MetricFiles], tmp_path: Path) -> None:
    files, secret = create(), tmp_path / "secret"
    secret.write_text("precious")
    (files.path / "fresh").symlink_to(secret)
    files.take_place(())
    assert secret.read_text() == "precious"
    assert secret.stat().st_size == 8
    assert not any(file.is_symlink() for file in files.path.iterdir())


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give up rights")
def test_processes_that_have_given_up_their_rights_count_but_cannot_put_links_into_the_folder() -> None:
    nobody = 65_534
    # Others than root may not enter the folders that pytest makes.
    files = MetricFiles.create(nobody, nobody, 1, (tempfile.gettempdir(),))
    files.take_place(())
    done = subprocess.run(
        [sys.executable, "-P", "-c", _WITHOUT_RIGHTS, str(files.path)],
        check=True,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.stdout.splitlines() == [
        "counter_0.db",
        "gauge_livemax_0.db",
        "gauge_livesum_0.db",
        "histogram_0.db",
        "13",
    ]
    assert (files.path / "counter_0.db").read_bytes()[:4] == b"none"
    files.remove()


def test_a_door_without_a_folder_of_metrics_starts_all_the_same() -> None:
    # The store is not asked.
    environ = os.environ | {"REDIS_URL": "redis://127.0.0.1:1", "PENSTOCK_AUTH": "open"}
    arguments = [sys.executable, "-P", "-c", _HOOKS]
    done = subprocess.run(arguments, check=True, capture_output=True, text=True, timeout=60, env=environ)
    assert done.stdout.splitlines() == ["each process shows only its own metrics: no room", "None", "None"]


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
        MetricFiles.create(os.getuid(), os.getgid(), 2, (str(tmp_path / "missing"),))
    files = MetricFiles.create(os.getuid(), os.getgid(), 2, (str(tmp_path / "missing"), str(tmp_path)))
    assert files.path.parent == tmp_path
    files.remove()
    assert not files.path.exists()
