"""Resolves the hosts of webhooks. Each tenant has its part of the threads, so that its name server delays no others."""

import threading
from collections import Counter
from collections.abc import Callable, Sequence

from shared.hosts import is_address
from web.webhooks.name_threads import MAX_THREADS, look_up

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
