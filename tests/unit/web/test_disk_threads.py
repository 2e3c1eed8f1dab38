"""A disk that is slow delays only those who wait for it."""

import threading
from dataclasses import replace
from typing import Any

import gevent
import pytest

from shared.clock import RealClock
from web.runtime import context as context_module
from web.runtime.context import make_door_context
from web.runtime.disk_threads import in_disk_thread


def test_other_greenlets_run_while_one_waits_for_a_disk():
    answered = threading.Event()
    gevent.spawn(answered.set)
    # In the thread of the event loop, this wait would end after a minute, and the greenlet would run only then.
    assert in_disk_thread(answered.wait, 60)


def test_what_a_call_raises_reaches_the_caller():
    with pytest.raises(FileNotFoundError):
        in_disk_thread(open, "/no/such/file")


def test_a_door_writes_reads_and_removes_files_in_such_threads(store, settings, tmp_path, monkeypatch):
    calls = []

    def recorded(call: Any, *arguments: Any) -> Any:
        calls.append(call.__name__)
        return call(*arguments)

    monkeypatch.setattr(context_module, "in_disk_thread", recorded)
    files = make_door_context(replace(settings, files_dir=str(tmp_path)), store, RealClock()).files
    files.add_part("f", "blue", 0, b"abc")
    file = files.close("f", "blue", purpose="batch", filename="", ttl_s=3_600)
    assert b"".join(files.read(file)) == b"abc"
    files.delete("f", "blue")
    assert calls == ["_write", "_sync", "_sync", "_read", "unlink"]
