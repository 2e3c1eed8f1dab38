"""Whether this process has been asked to stop: waits and event streams then end, and cancel nothing."""


class ShutdownFlag:
    """Set once, never cleared. A plain field: a signal handler sets it, whatever it interrupted."""

    def __init__(self) -> None:
        self._is_set = False

    def set(self) -> None:
        """From now on."""
        self._is_set = True

    def is_set(self) -> bool:
        """Whether it was."""
        return self._is_set


#: Set by web/gunicorn_worker.py.
requested = ShutdownFlag()
