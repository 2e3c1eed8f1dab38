"""Tests of the embedded store with real processes: its starter dies, it dies itself, or two processes start it."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from shared.errors import EmbeddedStoreError
from shared.state_dir import find_url, lock_state_dir
from shared.store.connection import open_client
from shared.store.embedded import EmbeddedStore
from tests.support.disk import full_disk

#: A program that starts a store, prints its pid and URL once it answers, and stops it when stdin is closed.
STARTER = """
import sys
from pathlib import Path
from shared.store.embedded import EmbeddedStore
from shared.state_dir import lock_state_dir
state = Path(sys.argv[1])
store = EmbeddedStore.start(state, lock=lock_state_dir(state, "http://127.0.0.1:8000"))
print(store.pid, store.url, flush=True)
sys.stdin.read()
store.stop()
"""


class Starter:
    """A process that has started the store of a folder, and that a test can kill."""

    def __init__(self, folder: Path) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", STARTER, str(folder)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert self.process.stdout is not None
        pid, _, self.url = self.process.stdout.readline().strip().partition(" ")
        self.store_pid = int(pid)

    def kill(self) -> None:
        self.process.kill()
        self._reap()

    def stop(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self._reap()

    def _reap(self) -> None:
        self.process.wait(20)
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None
            pipe.close()


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path
    note = tmp_path / "store.json"
    if note.exists():
        end(json.loads(note.read_text())["pid"])


def end(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return
    wait_until(lambda: not alive(pid))


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def wait_until(condition: Callable[[], bool]) -> None:
    limit = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < limit
        time.sleep(0.01)


def read(url: str, key: str) -> bytes | None:
    with open_client(url, name="test") as client:
        value = client.get(key)
        assert value is None or isinstance(value, bytes)
        return value


def write(url: str, key: str, value: str) -> None:
    with open_client(url, name="test") as client:
        client.set(key, value)


def test_data_survive_a_stop_and_a_start(folder):
    first = EmbeddedStore.start(folder)
    write(first.url, "kept", "yes")
    first.stop()
    assert not alive(first.pid)
    second = EmbeddedStore.start(folder)
    assert read(second.url, "kept") == b"yes"
    second.stop()


def test_the_next_start_takes_over_the_store_of_a_killed_starter_with_its_data(folder):
    starter = Starter(folder)
    write(starter.url, "kept", "yes")
    starter.kill()
    assert alive(starter.store_pid)

    store = EmbeddedStore.start(folder)
    assert store.adopted
    assert store.pid == starter.store_pid
    assert read(store.url, "kept") == b"yes"
    store.stop()
    assert not alive(starter.store_pid), "a process that takes a store over must also stop it"


def test_a_store_that_is_taken_over_gets_the_settings_of_the_new_start(folder):
    starter = Starter(folder)
    with open_client(starter.url, name="test") as client:
        client.config_set("maxmemory", 0)
        client.config_set("stream-node-max-bytes", 4_096)
    starter.kill()
    store = EmbeddedStore.start(folder, appendfsync="always", max_bytes=64 << 20)
    assert store.adopted
    with open_client(store.url, name="test") as client:
        expected = {"appendfsync": "always", "maxmemory": str(64 << 20), "stream-node-max-bytes": "256"}
        assert {name: client.config_get(name)[name] for name in expected} == expected
    store.stop()


def test_data_survive_the_kill_of_the_starter_and_of_the_store(folder):
    starter = Starter(folder)
    write(starter.url, "kept", "yes")
    end(starter.store_pid)
    starter.kill()

    store = EmbeddedStore.start(folder)
    assert not store.adopted
    assert read(store.url, "kept") == b"yes"
    store.stop()


def test_a_second_starter_is_refused_with_the_pid_and_the_url_of_the_first(folder):
    starter = Starter(folder)
    with pytest.raises(EmbeddedStoreError) as raised:
        EmbeddedStore.start(folder)
    assert str(starter.process.pid) in str(raised.value)
    assert "http://127.0.0.1:8000" in str(raised.value)
    starter.stop()


def test_other_commands_find_the_running_store_and_report_a_missing_one(folder):
    with pytest.raises(EmbeddedStoreError, match="penstock up"):
        find_url(folder)
    store = EmbeddedStore.start(folder)
    assert find_url(folder) == store.url
    store.stop()
    with pytest.raises(EmbeddedStoreError, match="penstock up"):
        find_url(folder)


def test_a_starter_can_revive_its_killed_store_with_its_data(folder):
    store = EmbeddedStore.start(folder)
    with open_client(store.url, name="test") as client:
        # During an fsync, the server keeps what it has acknowledged for up to two seconds, and would lose it.
        client.config_set("appendfsync", "always")
    write(store.url, "kept", "yes")
    before = store.pid
    assert store.alive()
    os.kill(before, signal.SIGKILL)
    wait_until(lambda: not store.alive())
    store.revive()
    assert store.pid != before
    assert read(store.url, "kept") == b"yes"
    store.stop()


def test_the_store_has_its_own_session_so_that_a_ctrl_c_does_not_reach_it(folder):
    starter = Starter(folder)
    assert os.getsid(starter.store_pid) != os.getsid(starter.process.pid)
    assert os.getpgid(starter.store_pid) != os.getpgid(starter.process.pid)
    starter.stop()
    assert not alive(starter.store_pid)


def test_a_forked_child_of_the_starter_cannot_stop_the_store(folder):
    store = EmbeddedStore.start(folder)
    child = os.fork()
    if child == 0:
        store.stop()
        os._exit(0)
    os.waitpid(child, 0)
    assert store.alive()
    assert read(store.url, "any") is None
    store.stop()


def test_a_store_that_hangs_is_named_in_the_error_and_no_second_one_is_started(folder):
    starter = Starter(folder)
    starter.kill()
    os.kill(starter.store_pid, signal.SIGSTOP)
    with pytest.raises(EmbeddedStoreError, match=str(starter.store_pid)):
        EmbeddedStore.start(folder, wait_s=0.5)
    os.kill(starter.store_pid, signal.SIGCONT)
    store = EmbeddedStore.start(folder)
    assert store.pid == starter.store_pid
    store.stop()


def test_the_socket_for_a_deep_folder_is_in_a_short_private_folder_and_is_found_again(folder):
    deep = folder / ("d" * 100) / ("e" * 100)
    store = EmbeddedStore.start(deep)
    socket = Path(store.url.removeprefix("unix://"))
    assert len(os.fsencode(socket)) <= 103
    assert socket.parent.stat().st_mode & 0o777 == 0o700
    write(store.url, "kept", "yes")
    assert find_url(deep) == store.url
    store.stop()
    assert not socket.parent.exists()
    again = EmbeddedStore.start(deep)
    assert read(again.url, "kept") == b"yes"
    again.stop()


def test_a_folder_with_blanks_and_question_marks_in_its_name_works(folder):
    store = EmbeddedStore.start(folder / "what? a #1 folder")
    write(store.url, "kept", "yes")
    assert read(store.url, "kept") == b"yes"
    store.stop()


def test_the_store_is_private_and_durable_and_listens_on_no_port(folder):
    store = EmbeddedStore.start(folder, appendfsync="always")
    with open_client(store.url, name="test") as client:
        configured = client.config_get("*")
    assert configured["port"] == "0"
    assert (configured["appendonly"], configured["appendfsync"]) == ("yes", "always")
    assert configured["maxmemory-policy"] == "noeviction"
    assert 0 < int(configured["maxmemory"]) <= psutil.virtual_memory().total // 2
    assert configured["save"] == ""
    socket = Path(configured["unixsocket"])
    assert socket.stat().st_mode & 0o077 == 0
    assert socket.parent.stat().st_mode & 0o777 == 0o700
    store.stop()


def test_the_store_has_the_limit_on_its_memory_that_the_operator_sets(folder):
    store = EmbeddedStore.start(folder, max_bytes=64 * 2**20)
    with open_client(store.url, name="test") as client:
        assert client.config_get("maxmemory") == {"maxmemory": str(64 * 2**20)}
    store.stop()


def test_a_start_that_failed_on_a_full_disk_does_not_block_a_later_one(folder):
    lock = lock_state_dir(folder, "")
    with full_disk(), pytest.raises(EmbeddedStoreError, match="File too large"):
        EmbeddedStore.start(folder, lock=lock)
    EmbeddedStore.start(folder, wait_s=5.0).stop()


def test_a_start_that_fails_gives_the_reason_and_does_not_block_a_later_one(folder):
    (folder / "store" / "appendonlydir").mkdir(parents=True)
    (folder / "store" / "appendonlydir" / "appendonly.aof.manifest").write_text("nonsense\n")
    with pytest.raises(EmbeddedStoreError, match="valkey"):
        EmbeddedStore.start(folder)
    (folder / "store" / "appendonlydir" / "appendonly.aof.manifest").unlink()
    EmbeddedStore.start(folder).stop()
