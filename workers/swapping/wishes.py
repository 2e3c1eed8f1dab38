"""Remembers for which models clients were refused lately: these are loaded as if jobs waited for them."""

#: A refused client comes back within a minute, the longest hint, if at all; and a load takes its time.
_WISH_S = 75.0


class Wishes:
    """The models for which requests were refused. Times are in seconds of one monotonic clock."""

    def __init__(self) -> None:
        #: By model, the store's count of refused requests, and when it last grew.
        self._counts: dict[str, int] = {}
        self._noted_s: dict[str, float] = {}

    def note(self, model: str, refused: int, now_s: float) -> None:
        """Note the number of requests that the model's pool has refused because of its load, as the store counts it."""
        if refused > self._counts.get(model, refused):
            self._noted_s[model] = now_s
        self._counts[model] = refused

    def forget_count(self, model: str) -> None:
        """Count the next figure from there on: requests that were refused while the model was loaded are no wishes."""
        self._counts.pop(model, None)

    def is_wanted(self, model: str, now_s: float) -> bool:
        """Return whether a client that was refused may still come back."""
        return now_s - self._noted_s.get(model, float("-inf")) <= _WISH_S
