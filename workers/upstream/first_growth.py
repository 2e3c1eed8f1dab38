"""Says how far the number of requests at once can be doubled at first, from the times to first tokens; pure.

A controller that measures tokens per second needs seconds for each doubling. Until it has grown, the door predicts long
waits and refuses requests, so that a fast server stands idle. First tokens show much sooner whether the server begins
all requests at once.
"""

from dataclasses import dataclass
from enum import Enum

#: The number grows while the mean time to a first token is at most this many times that with the first number, and this
#: much longer, in seconds.
_TIMES_FIRST, _LONGER_S = 2.0, 0.1
#: The weight of a new mean time with the first number.
_SMOOTHING = 0.5


class Growth(Enum):
    """The conclusion from the first tokens so far."""

    #: The requests that the last change added have not begun, or there are no more requests.
    WAIT = "wait"
    #: The added requests have begun as fast as the first ones.
    GROW = "grow"
    #: They began too slowly.
    SLOW = "slow"
    #: No request has a first token that is awaited: embeddings have none.
    UNKNOWN = "unknown"


@dataclass
class FirstGrowth:
    """The first tokens since the number was changed. `added` is how many requests the change allowed."""

    now_s: float
    added: int
    #: The mean time to a first token with the first number, in seconds.
    first_s: float | None = None
    #: Whether the speed has been measured with the present number.
    is_measured: bool = False
    #: The integral of the number of waiting requests over time: divided by the first tokens, their mean time.
    _waiting_s: float = 0.0
    _waiting: int = 0
    _starts_before: int = 0
    _most_in_flight: int = 0
    #: Whether the number has been doubled.
    _has_grown: bool = False

    def observe(self, now_s: float, *, in_flight: int, waiting: int) -> None:
        self._waiting_s += max(0.0, now_s - self.now_s) * self._waiting
        self.now_s, self._waiting = now_s, waiting
        self._most_in_flight = max(self._most_in_flight, in_flight)

    def verdict(self, limit: int, starts: int, *, refuses: bool) -> Growth:
        """Return whether the number may grow. `refuses` is whether the door has refused requests lately."""
        begun = starts - self._starts_before
        if begun and not self._waiting_s:
            return Growth.UNKNOWN
        # Requests that still wait have waited for a part of their time, so that this is at most the mean.
        if self._has_grown and self.first_s is not None:
            allowed_s = _TIMES_FIRST * self.first_s + _LONGER_S
            if self._waiting_s > allowed_s * max(1, begun + self._waiting):
                return Growth.SLOW
        if begun < self.added or not self.is_measured:
            return Growth.WAIT
        if not self._has_grown:
            mean_s = self._waiting_s / begun
            self.first_s = mean_s if self.first_s is None else self.first_s + _SMOOTHING * (mean_s - self.first_s)
        grows = self._most_in_flight >= limit or refuses
        self._begin_again(starts, max(1, self.added))
        return Growth.GROW if grows else Growth.WAIT

    def note_limit(self, added: int, starts: int) -> None:
        """Record that this many more requests may run from now on."""
        self._has_grown, self.is_measured = True, False
        self._begin_again(starts, added)

    def _begin_again(self, starts: int, added: int) -> None:
        self.added, self._starts_before = added, starts
        self._waiting_s, self._most_in_flight = 0.0, 0
