"""Slows a worker down while its upstream fails every request, so that a few jobs lose attempts and not all; pure."""

#: The pause after the second failure in a row, in seconds. Each further failure doubles it, up to the longest pause.
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.25, 4.0
#: An answer that goes on for this long after a failure, in seconds, was not hit by it.
_SURVIVED_S = 1.0


class FailureBackoff:
    """Counts the failures since the last success.

    An attempt that failed counts, and the job is queued again at once. If the upstream fails all requests, each job
    would lose its attempts within a moment. So from the second failure in a row on, the worker pauses, and then sends
    one request at a time, until one succeeds. A single failure changes nothing: a request that makes the upstream fail
    must not slow down those of other tenants.
    """

    def __init__(self) -> None:
        self._failures = 0
        self._last_s = float("-inf")

    @property
    def suspects(self) -> bool:
        """Whether only one request at a time is sent."""
        return self._failures >= 2

    def note_failure(self, began_s: float, now_s: float) -> float:
        """Record that a request failed, which began at `began_s`. Return how long to pause, in s.

        Requests that were already running at the last failure failed for the same reason, and do not count again.
        """
        if began_s < self._last_s:
            return 0.0
        self._failures, self._last_s = self._failures + 1, now_s
        return min(_LONGEST_PAUSE_S, _FIRST_PAUSE_S * 2 ** (self._failures - 2)) if self.suspects else 0.0

    def note_part(self, began_s: float, now_s: float) -> bool:
        """Record that a part of an answer has arrived whose request began at `began_s`. Return whether that is news.

        If it began before the last failure, the upstream does not fail every request. A part of a later answer says
        little, because some servers fail in the middle of every answer.
        """
        survived = self._failures > 0 and began_s < self._last_s <= now_s - _SURVIVED_S
        self._failures = 0 if survived else self._failures
        return survived

    def note_success(self) -> None:
        """Record that the upstream has answered a request as it should."""
        self._failures = 0
