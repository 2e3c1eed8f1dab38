"""A flag that is set when this process is asked to stop: long polls and event streams end, but their jobs continue."""


class ShutdownFlag:
    """A flag that is set once and never cleared. It uses no lock, so that a signal handler can set it at any time."""

    def __init__(self) -> None:
        self._is_set = False

    def set(self) -> None:
        """Set the flag."""
        self._is_set = True

    def is_set(self) -> bool:
        """Return whether the flag is set."""
        return self._is_set


#: The flag of this process. It is set by web/server/worker.py.
requested = ShutdownFlag()
