"""Resolves the hosts of webhooks. Each tenant has its part of the threads, so that its name server delays no others."""

import socket
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

from gevent import monkey
from gevent.threadpool import ThreadPool

from shared.hosts import is_address

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


#: How long a try waits for the addresses of a name, in seconds.
RESOLVE_S = 5.0
#: How many threads one tenant's names may hold. A thread is held until the system's resolver gives up, which can take
#: longer than the try.
AT_ONCE_OF_TENANT = 2

#: Returns the addresses of a host, as texts. Raises OSError.
Resolve = Callable[[str, int], Sequence[str]]


class NoThreadFree(Exception):
    """The name was not looked up, because all threads that the tenant may use are held by other names."""


class NotResolved(OSError):
    """The name has no address, or no name server has answered in time."""


class NameResolver:
    """Looks up names in threads that are left behind if they take too long: a lookup cannot be interrupted."""

    def __init__(self, resolve: Resolve = look_up) -> None:
        self._resolve = resolve
        self._lock = threading.Lock()
        #: How many threads the names of each tenant hold; guarded by the lock.
        self._held = Counter[str]()

    def addresses(self, tenant: str, host: str, port: int) -> Sequence[str]:
        """Return the addresses of a host, at least one. Raises NotResolved and NoThreadFree."""
        if is_address(host):
            return [host]
        with self._lock:
            if self._held[tenant] >= AT_ONCE_OF_TENANT or self._held.total() >= MAX_THREADS:
                raise NoThreadFree
            self._held[tenant] += 1
        found: list[Sequence[str]] = []
        ended = threading.Event()

        def run() -> None:
            try:
                found.append(self._resolve(host, port))
            except (OSError, UnicodeError):
                pass
            finally:
                with self._lock:
                    self._held[tenant] -= 1
                    self._held += Counter()
                ended.set()

        threading.Thread(target=run, name="webhook-resolver", daemon=True).start()
        if not ended.wait(RESOLVE_S) or not found or not found[0]:
            raise NotResolved(f"{host} has no address")
        return found[0]
