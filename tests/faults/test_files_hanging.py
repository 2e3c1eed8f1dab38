"""A door whose folder of files hangs, as a network file system without its server does, serves everything else."""

import contextlib
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.support.processes import wait_for
from tests.support.served import Served, sim_served
from web.runtime.disk_threads import DISK_THREADS

pytestmark = pytest.mark.ways("direct", reason="the disk is the same behind a proxy")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "files"


@pytest.fixture
def served(tmp_path: Path, folder: Path) -> Iterator[Served]:
    with sim_served(tmp_path, PENSTOCK_FILES_DIR=str(folder)) as served:
        yield served


@contextlib.contextmanager
def hanging(path: Path) -> Iterator[None]:
    """Let every call that opens a file wait until the block ends."""
    content = path.read_bytes()
    path.unlink()
    os.mkfifo(path)
    try:
        yield
    finally:
        path.rename(path.with_suffix(".pipe"))
        path.write_bytes(content)
        # A writer unblocks the readers that wait for one.
        with contextlib.suppress(OSError):
            os.close(os.open(path.with_suffix(".pipe"), os.O_WRONLY | os.O_NONBLOCK))


def test_reads_that_hang_in_all_disk_threads_delay_only_requests_for_files(served: Served, folder: Path) -> None:
    form = {"files": {"file": ("lines", b"abc")}, "data": {"purpose": "batch"}}
    file_id = served.http.post("/v1/files", **form).json()["id"]
    url, answers = f"{served.url}/v1/files/{file_id}/content", list[int]()

    def read() -> None:
        answers.append(httpx.get(url, timeout=120).status_code)

    readers = [threading.Thread(target=read) for _ in range(4 * DISK_THREADS)]
    with hanging(folder / file_id):
        for reader in readers:
            reader.start()
        # New connections of clients and to the store included.
        for _ in range(20):
            with httpx.Client(base_url=served.url, timeout=25) as client:
                assert client.get("/health/ready").status_code == 200
                assert client.post("/v1/jobs?wait_ms=20000", json={"prompt": "a", "max_tokens": 1}).status_code < 300
        # Each reader is told in the end.
        wait_for(lambda: len(answers) == len(readers), "the limit of the calls", timeout_s=120)
    assert set(answers) == {503}
    for reader in readers:
        reader.join()
    wait_for(lambda: httpx.get(url, timeout=120).status_code == 200, "the disk to answer", timeout_s=120)
