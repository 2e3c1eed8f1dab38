"""Whether this process has been asked to stop: waits and event streams then end, and cancel nothing."""

import threading
from typing import Any

import gevent

#: Set once, never cleared.
asked = threading.Event()

#: How late a stop may be noticed, in seconds.
_LOOK_S = 0.1


def watch(worker: Any) -> None:
    """Follow a gunicorn worker's `alive`, which its signal handler clears."""

    def look() -> None:
        while worker.alive:
            gevent.sleep(_LOOK_S)
        asked.set()

    gevent.spawn(look)
