"""Resolves names in native threads of their own, so that name servers that do not answer hold up nothing else."""

import socket
from functools import cache
from typing import Any

from gevent import monkey
from gevent.threadpool import ThreadPool

#: So many names are resolved at once in a process. gevent resolves the names of all other connections, such as those to
#: the store, in the ten threads of its hub. A thread waits for as long as the system's resolver does.
MAX_THREADS = 16


def look_up(host: str, port: int) -> list[str]:
    """Return the addresses of a host, without duplicates; none if it has none, or if no name server has answered."""
    if monkey.is_module_patched("socket"):
        found = _pool().apply(_look_up_here, (host, port))
    else:
        # Without gevent's patches, the caller is a native thread itself.
        found = _look_up_here(host, port)
    return list(dict.fromkeys(str(address[0]).partition("%")[0] for *_, address in found))


def _look_up_here(host: str, port: int) -> list[Any]:
    # As bytes, because the codec for IDNA names, which would be used for a text, imports modules in this thread.
    name, getaddrinfo = host.encode("ascii"), monkey.get_original("socket", "getaddrinfo")
    try:
        found: list[Any] = getaddrinfo(name, port, type=socket.SOCK_STREAM)
    except OSError:
        # gevent would print the traceback of an exception that leaves the thread.
        return []
    return found


@cache  # one for the event loop of the process
def _pool() -> ThreadPool:
    return ThreadPool(MAX_THREADS)
