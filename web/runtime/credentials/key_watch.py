"""Ends open streams, waits and gate connections soon after their API key was removed or their tenant was disabled."""

import threading
import weakref
from collections.abc import Callable

from shared.errors import StoreUnavailable
from shared.log import get_logger
from web.http.api_errors import ApiError
from web.runtime.accounts import AskAccounts

log = get_logger()

#: The time between two passes, in seconds. A stream notices the result of a pass within another half second, so that it
#: ends about a second after the change, as docs/http.md promises.
_INTERVAL_S = 0.5


class KeyUse:
    """One use of a key that outlasts a request's start: a stream, a waiting call or a gate connection.

    It is watched for as long as somebody holds a reference to it.
    """

    def __init__(self, digest: str, tenant: str, on_end: Callable[[ApiError], None] | None = None) -> None:
        """Watch the key with this digest, which acts for the tenant; with the digest "", watch only the tenant.

        `on_end` is called once, on the watching thread, when the key is no longer valid; it must not block.
        """
        self.digest, self.tenant, self._on_end = digest, tenant, on_end
        #: Why the key is no longer valid; None while it is. Set once, by the watching thread.
        self.problem: ApiError | None = None

    @property
    def ended(self) -> bool:
        """Whether the key is no longer valid."""
        return self.problem is not None

    def check(self) -> None:
        """Raise ApiError (401, 403) if the key is no longer valid."""
        if self.problem is not None:
            raise self.problem

    def end(self, problem: ApiError) -> None:
        """Set `problem` and call `on_end`; only the watching thread calls this."""
        self.problem = problem
        if self._on_end is not None:
            self._on_end(problem)


class KeyWatch:
    """Checks all uses in one thread, which runs while there are any.

    While the store does not answer, every key counts as valid.
    """

    def __init__(self, ask: AskAccounts) -> None:
        self._ask = ask
        self._lock = threading.Lock()
        #: Guarded by the lock. A use disappears from the set when nobody refers to it any more.
        self._uses: weakref.WeakSet[KeyUse] = weakref.WeakSet()
        self._thread: threading.Thread | None = None

    def watch(self, digest: str, tenant: str, on_end: Callable[[ApiError], None] | None = None) -> KeyUse:
        """Return a new use, which is watched from now on."""
        use = KeyUse(digest, tenant, on_end)
        with self._lock:
            self._uses.add(use)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="key-watch", daemon=True)
                self._thread.start()
        return use

    def one_pass(self) -> None:
        """Check all uses once, in a few round trips. Raises StoreUnavailable.

        An error of one use's `on_end` is raised after all uses have been checked.
        """
        fault: Exception | None = None
        with self._lock:
            uses = [use for use in self._uses if not use.ended]
        digests, tenants = {use.digest for use in uses if use.digest}, {use.tenant for use in uses}
        valid = self._ask(lambda accounts: accounts.api_keys.find_valid(digests))
        disabled = self._ask(lambda accounts: accounts.tenants.find_disabled(tenants))
        for use in uses:
            problem = _problem_of(use, valid, disabled)
            if problem is None:
                continue
            log.info("key.ended", tenant=use.tenant, code=problem.code)
            try:
                use.end(problem)
            except Exception as error:  # noqa: BLE001 - no error of one use may keep another one from its end
                fault = error
        if fault is not None:
            raise fault

    def _run(self) -> None:
        #: This event is never set. Waiting for it is a sleep.
        pause = threading.Event()
        failed_before = False
        while True:
            pause.wait(_INTERVAL_S)
            with self._lock:
                if not self._uses:
                    self._thread = None
                    return
            try:
                self.one_pass()
                failed_before = False
            except StoreUnavailable:
                continue
            except Exception:
                # Log only the first of several failures in a row: the pass is repeated twice a second.
                if not failed_before:
                    log.exception("key_watch.fault")
                failed_before = True


def _problem_of(use: KeyUse, valid: frozenset[str], disabled: frozenset[str]) -> ApiError | None:
    if use.digest and use.digest not in valid:
        return ApiError("invalid_api_key", "the API key was removed, or has expired, while the connection was open")
    if use.tenant in disabled:
        return ApiError("tenant_disabled", f"tenant {use.tenant!r} was disabled while the connection was open")
    return None


class ClientWatch:
    """Watches the client of one call for as long as the call lasts."""

    def __init__(self, disconnected: Callable[[], bool], use: KeyUse) -> None:
        """`disconnected` returns whether the client has closed its connection; `use` is the use of the client's key."""
        self._disconnected, self._use = disconnected, use

    @property
    def key_problem(self) -> ApiError | None:
        """Why the client's key is no longer valid; None while it is."""
        return self._use.problem

    def gone(self) -> bool:
        """Return whether the call has nobody to answer to any more."""
        return self._use.ended or self._disconnected()
