"""Logs why llama.cpp ends the process: its message and last errors, the device, and what the GPU's driver reported.

Without this, llama.cpp prints only its message: the error that explains it was collected, and dies with the process.
"""

import atexit
import ctypes
import os
import re
import sys
import time
from collections import deque
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

from shared.log import get_logger
from workers.engine.llama.log import LlamaLog

_log = get_logger()

#: The kernel's log. Only root, or a process with CAP_SYSLOG, can read it on most machines.
_KERNEL_LOG = Path("/dev/kmsg")
#: How many bytes of a record are read, how long reading may take, and how old a report of the driver may be.
_RECORD_BYTES, _READ_S, _RECENT_S = 8192, 0.5, 60
#: The most reports that are logged.
_MAX_REPORTS = 4
#: A record of the kernel's log: priority, sequence number, µs since the start; then the report of NVIDIA's driver.
_XID = re.compile(r"\d+,\d+,(\d+),[^;]*;.*?(NVRM: Xid .*)")
_MAX_FRAMES = 64
_CALLBACK_TYPE = ctypes.CFUNCTYPE(None, ctypes.c_char_p)
#: The registered callbacks. They must not be garbage-collected while the library can call them.
_callbacks: list[Any] = []


def log_aborts(ggml: Any, log: LlamaLog, device: str) -> None:
    """Make ggml log the reason before it aborts the process. `device` names the devices that compute the model.

    Does nothing if this build of ggml has no such callback.
    """
    set_callback = getattr(ggml, "ggml_set_abort_callback", None)
    if set_callback is None:
        return

    def report(message: bytes | None) -> None:
        text = (message or b"").decode("utf-8", "replace").strip()
        _log.critical("engine.aborted", why=text, errors=log.errors(), device=device, xid="; ".join(read_xids()))
        sys.stderr.flush()
        _print_native_frames()

    set_callback.argtypes, set_callback.restype = [_CALLBACK_TYPE], ctypes.c_void_p
    callback = _CALLBACK_TYPE(report)
    set_callback(callback)
    if not _callbacks:
        # An abort while the process exits must not call into an interpreter that has ended.
        atexit.register(set_callback, _CALLBACK_TYPE())
    _callbacks[:] = [callback]


def read_xids(kernel_log: Path = _KERNEL_LOG) -> list[str]:
    """Return what NVIDIA's driver reported in the last minute, or nothing if the kernel's log cannot be read."""
    records = []
    until_s = time.monotonic() + _READ_S
    with suppress(OSError):
        descriptor = os.open(kernel_log, os.O_RDONLY | os.O_NONBLOCK)
        try:
            # Each read returns one record, and fails after the last one.
            while time.monotonic() < until_s and (record := os.read(descriptor, _RECORD_BYTES)):
                if b"NVRM: Xid" in record:
                    records.append(record.decode("utf-8", "replace"))
        except BlockingIOError:
            pass
        finally:
            os.close(descriptor)
    return recent_xids(records, time.monotonic())


def recent_xids(records: Iterable[str], now_s: float) -> list[str]:
    """Return the last reports of NVIDIA's driver in these records of the kernel's log that are at most a minute old."""
    found: deque[str] = deque(maxlen=_MAX_REPORTS)
    for record in records:
        for line in record.splitlines():
            if (match := _XID.match(line)) and int(match[1]) / 1e6 >= now_s - _RECENT_S:
                found.append(match[2].strip())
    return list(found)


def _print_native_frames() -> None:
    """Print the C stack of this thread, as ggml does without a callback."""
    library = ctypes.CDLL(None)
    if hasattr(library, "backtrace_symbols_fd"):
        frames = (ctypes.c_void_p * _MAX_FRAMES)()
        library.backtrace_symbols_fd(frames, library.backtrace(frames, _MAX_FRAMES), 2)
