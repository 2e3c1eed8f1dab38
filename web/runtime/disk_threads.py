"""Runs calls that wait for a disk in threads of their own, while the event loop of the process continues."""

from collections.abc import Callable
from functools import cache
from typing import Any

import gevent
from gevent.hub import Hub
from gevent.threadpool import ThreadPool

#: How many calls run at once. They have a pool of their own: gevent resolves the names of hosts in the pool of the hub,
#: and calls that hang there would keep the process from opening connections to the store.
DISK_THREADS = 10
#: The longest wait for a call, in seconds. Writing 100 MiB to a slow disk takes a few.
DISK_LIMIT_S = 30.0


def in_disk_thread(call: Callable[..., Any], *arguments: Any) -> Any:
    """Return what the call returns, or raise what it raises; other greenlets run meanwhile.

    Raises TimeoutError after DISK_LIMIT_S, with the wait for a free thread. A call that has begun is not ended by this:
    its thread is free again when the disk answers. So a disk that hangs delays only those who use it.
    """
    with gevent.Timeout(DISK_LIMIT_S, TimeoutError(f"the disk did not answer for {DISK_LIMIT_S:.0f} s")):
        answer, error = _pool_of(gevent.get_hub()).spawn(_answer_of, call, arguments).get()
    if error is not None:
        raise error
    return answer


def _answer_of(call: Callable[..., Any], arguments: tuple[Any, ...]) -> tuple[Any, Exception | None]:
    # gevent would print the traceback of an exception that leaves the thread, also of one that the caller expects.
    try:
        return call(*arguments), None
    except Exception as error:  # noqa: BLE001 - the caller raises it
        return None, error


@cache
def _pool_of(hub: Hub) -> ThreadPool:
    return ThreadPool(DISK_THREADS, hub=hub)
