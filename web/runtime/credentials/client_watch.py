"""Tells a call that waits or streams when to stop: its client has disconnected, or its key is no longer valid."""

from collections.abc import Callable

from web.http.api_errors import ApiError
from web.runtime.credentials.key_watch import KeyUse


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
