"""Runs calls that wait for a disk in threads of their own, while the event loop of the process goes on."""

from collections.abc import Callable
from typing import Any

from gevent import get_hub


def in_disk_thread(call: Callable[..., Any], *arguments: Any) -> Any:
    """Return what the call returns, or raise what it raises; other greenlets run meanwhile.

    At most ten calls run at once (the size of gevent's pool). Further ones wait, so that a disk that does not answer
    holds up only those who use it.
    """
    return get_hub().threadpool.apply(call, arguments)
