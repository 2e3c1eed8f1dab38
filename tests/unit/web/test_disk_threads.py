"""A slow disk delays only the callers that need it."""

import os
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import gevent
import pytest

from shared.clock import RealClock
from shared.errors import FilesUnavailable
from shared.store.batches.folder import FilesFolder
from shared.store.batches.storage_location import claim_home, remove_old_files
from web.batches.feeder import clear_folder
from web.runtime import context as context_module
from web.runtime import disk_threads
from web.runtime.context import DoorContext
from web.runtime.disk_threads import DISK_THREADS, in_disk_thread

#: When a disk that hangs answers at the latest, so that a test which waits for it fails and does not hang itself.
ANSWERS_AFTER_S = 60


@contextmanager
def hanging_disk() -> Iterator[Callable[[], bool]]:
    """Yield a call to the disk that hangs until the block ends; it returns whether it was ended so."""
    answers = threading.Event()
    try:
        yield lambda: answers.wait(ANSWERS_AFTER_S)
    finally:
        answers.set()


def test_other_greenlets_run_while_one_waits_for_a_disk():
    answered = threading.Event()
    gevent.spawn(answered.set)
    # In the thread of the event loop, this wait would end after a minute, and the greenlet would run only then.
    assert in_disk_thread(answered.wait, 60)


def test_what_a_call_raises_reaches_the_caller_and_nobody_else(capfd):
    with pytest.raises(FileNotFoundError):
        in_disk_thread(open, "/no/such/file")
    assert capfd.readouterr().err == ""


def test_a_door_writes_reads_and_removes_files_in_such_threads(store, settings, tmp_path, monkeypatch):
    calls = []

    def recorded(call: Any, *arguments: Any) -> Any:
        calls.append(call.__name__)
        return call(*arguments)

    monkeypatch.setattr(context_module, "in_disk_thread", recorded)
    files = DoorContext(replace(settings, files_dir=str(tmp_path)), store, RealClock()).files
    files.add_part("f", "blue", 0, b"abc")
    file = files.close("f", "blue", purpose="batch", filename="", ttl_s=3_600)
    assert b"".join(files.read(file)) == b"abc"
    files.delete("f", "blue")
    assert calls == ["_write", "_sync", "_sync", "_read", "_remove"]


def test_the_names_of_hosts_are_found_while_all_disk_threads_hang():
    with hanging_disk() as hang:
        reads = [gevent.spawn(in_disk_thread, hang) for _ in range(2 * DISK_THREADS)]
        gevent.sleep(0)
        # As redis-py does in a door, whose socket module is gevent's.
        assert gevent.get_hub().resolver.getaddrinfo("127.0.0.1", 6379, 0, socket.SOCK_STREAM)
        assert not any(read.ready() for read in reads)
    gevent.joinall(reads, raise_error=True)


@pytest.mark.parametrize("calls", [1, DISK_THREADS + 1])
def test_nobody_waits_longer_than_the_limit_for_a_disk_or_for_a_thread(monkeypatch, tmp_path, calls):
    monkeypatch.setattr(disk_threads, "DISK_LIMIT_S", 0.2)
    with hanging_disk() as hang:
        waiting = [gevent.spawn(in_disk_thread, hang) for _ in range(calls)]
        gevent.joinall(waiting)
        assert all(isinstance(one.exception, TimeoutError) for one in waiting)
        folder = FilesFolder(tmp_path, lambda *_: in_disk_thread(hang))
        with pytest.raises(FilesUnavailable, match="the disk did not answer"):
            folder.write("f", 0, b"abc")


@pytest.mark.parametrize("hangs", ["_has_mark", "list", "_remove"])
def test_a_folder_that_hangs_while_it_is_cleared_holds_up_nobody_else(store, settings, tmp_path, monkeypatch, hangs):
    chosen = replace(settings, files_dir=str(tmp_path / "files"))
    claim_home(store.client, chosen)
    expired = tmp_path / "files" / f"file-{'a' * 24}"
    expired.write_bytes(b"abc")
    os.utime(expired, (1, 1))
    begun = threading.Event()
    with hanging_disk() as hang:

        def slow(call: Any, *arguments: Any) -> Any:
            return in_disk_thread(partial(_after, begun, hang, call) if call.__name__ == hangs else call, *arguments)

        monkeypatch.setattr(context_module, "in_disk_thread", slow)
        context = DoorContext(chosen, store, RealClock())
        clearing = gevent.spawn(clear_folder, context)
        # The event loop continues while the folder hangs.
        while not begun.is_set():
            gevent.sleep(0.01)
        assert not clearing.ready()
    clearing.get()
    assert not expired.exists()


def test_clearing_touches_the_disk_only_in_its_threads(store, settings, tmp_path, monkeypatch):
    chosen = replace(settings, files_dir=str(tmp_path / "files"))
    claim_home(store.client, chosen)
    here, elsewhere = threading.get_ident(), set()
    touched = [(os, "scandir"), (Path, "read_bytes"), (Path, "resolve"), (Path, "unlink")]

    def noting(call: Any, *arguments: Any, **named: Any) -> Any:
        elsewhere.add(threading.get_ident() != here)
        return call(*arguments, **named)

    for owner, name in touched:
        original = getattr(owner, name)
        monkeypatch.setattr(owner, name, lambda *given, _call=original, **named: noting(_call, *given, **named))
    context = DoorContext(chosen, store, RealClock())
    elsewhere.clear()
    assert remove_old_files(context.store.client, context.files.folder) == 0
    clear_folder(context)
    assert elsewhere == {True}


def _after(begun: threading.Event, hang: Callable[[], bool], call: Any, *arguments: Any) -> Any:
    begun.set()
    assert hang()
    return call(*arguments)
