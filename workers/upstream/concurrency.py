"""Finds how many requests at once the upstream serves best, from its tokens per second and its first tokens; pure.

A server has a number of slots, or of sequences that fit its memory. Fewer requests leave some of it unused. With more,
requests wait inside the server, where Penstock cannot order them, and tokens per second do not grow. So the best number
is the smallest with which the server generates nearly as many tokens per second as with any other.

The controller measures each number for a window of about 1.5 s, and only while all of it is in use. The score of a
number is the tokens per second, less a third of the share of the requests that wait for their first tokens. It grows
the number as long as twice as many score higher, and compares it with the next lower and with twice the number from
time to time. If the upstream becomes faster or slower as a whole, all scores are scaled by what the current number
shows, so that a slowdown does not look like a wrong number.
"""

from dataclasses import dataclass

#: The first number, and the ratio of two adjacent levels: from the numbers of these levels one is chosen.
_FIRST, _RATIO = 4, 2**0.5
#: The share of the best score that a smaller number must reach to be preferred.
_NEARLY = 0.93
#: By what share the score is reduced if all requests wait for their first tokens.
_WAITING_WEIGHT = 1 / 3
#: A window is measured for at least this long, and then until it has this many tokens or has taken the longest time, s.
_WINDOW_S, _WINDOW_TOKENS, _LONGEST_WINDOW_S = 1.5, 100, 5.0
#: The shortest and the longest time until a new number has taken effect and its window begins, in seconds.
_SETTLE_S, _LONGEST_SETTLE_S = 0.4, 5.0
#: A window counts if all of the number was in use at some time, and this share of it on average: then the number was
#: the limit, and not the demand. The rest allows for the time that a worker takes to claim the next job.
_IN_USE = 0.7
#: Scores are measured again after this time, in seconds.
_FRESH_S = 20.0
#: A score that differs from the last one by more than this factor says that the upstream's speed has changed.
_SPEED_CHANGE = 1.33
#: The weight of a new score of a number that was measured before.
_SMOOTHING = 0.5
#: The next lower number that is tried is less than this share of the best one. If more than the second share of the
#: requests wait for their first tokens, it is tried before a higher one.
_LOWER, _MANY_WAIT = 0.75, 0.4
#: What is left of the number if the upstream refuses a request, at most once in this time, in seconds; and how long
#: the number at which it refused is not tried again.
_DECREASE, _ONE_DECREASE_S, _REFUSED_S = 0.7, 1.0, 30.0


@dataclass
class _Score:
    """What was measured with one number: tokens per second, reduced for waiting requests, and when it was."""

    value: float
    at_s: float


@dataclass
class _Window:
    """Sums since the begin of a measurement. The first two are integrals over time."""

    began_s: float
    tokens_before: int
    in_flight_s: float = 0.0
    waiting_s: float = 0.0
    most_in_flight: int = 0


class Concurrency:
    """The number of requests at once. One thread calls the methods; any thread may read `limit`."""

    def __init__(self, most: int, now_s: float, *, fixed: int | None = None) -> None:
        """Start with a small number, of at most `most`. If `fixed` is given, the number stays that."""
        self._levels = _levels(most)
        self._fixed = fixed is not None
        #: How many requests may run at once now.
        self.limit = min(most, _FIRST if fixed is None else fixed)
        self._scores: dict[int, _Score] = {}
        self._best = self.limit
        self._refused_from, self._refused_s = most + 1, float("-inf")
        # What the last observation said.
        self._now_s, self._in_flight, self._waiting, self._tokens, self._starts = now_s, 0, 0, 0, 0
        self._changed_s, self._starts_at_change, self._raised_by = now_s, 0, 0
        self._window: _Window | None = None

    def observe(self, now_s: float, *, in_flight: int, waiting: int, tokens: int, starts: int) -> bool:
        """Record the present state: at each change, and from time to time. Return whether the limit was raised.

        `waiting` is how many of the requests in flight have no token yet. `tokens` and `starts` count all tokens and
        all first tokens so far.
        """
        if self._fixed:
            return False
        before = self.limit
        passed_s = max(0.0, now_s - self._now_s)
        if self._window is not None:
            self._window.in_flight_s += passed_s * self._in_flight
            self._window.waiting_s += passed_s * self._waiting
        self._now_s, self._in_flight, self._waiting = now_s, in_flight, waiting
        self._tokens, self._starts = tokens, starts
        if self._window is None:
            self._begin_if_settled()
        else:
            self._window.most_in_flight = max(self._window.most_in_flight, in_flight)
            self._end_if_measured(self._window)
        return self.limit > before

    def note_refused(self, now_s: float) -> None:
        """Record that the upstream refused a request because there were too many."""
        if self._fixed or now_s - self._refused_s < _ONE_DECREASE_S:
            return
        self._refused_from, self._refused_s = self.limit, now_s
        self._best = max(1, int(self.limit * _DECREASE))
        self._move_to(self._best)

    def _begin_if_settled(self) -> None:
        """Begin a window when the requests that the last change added have begun, or those that it removed are gone."""
        since_s = self._now_s - self._changed_s
        has_started = self._starts - self._starts_at_change >= self._raised_by
        settled = since_s >= _SETTLE_S and has_started and self._in_flight <= self.limit
        if settled or (since_s >= _LONGEST_SETTLE_S and self._in_flight <= self.limit):
            self._window = self._new_window()

    def _new_window(self) -> _Window:
        return _Window(self._now_s, self._tokens, most_in_flight=self._in_flight)

    def _end_if_measured(self, window: _Window) -> None:
        took_s = self._now_s - window.began_s
        tokens = self._tokens - window.tokens_before
        if took_s < _WINDOW_S or (tokens < _WINDOW_TOKENS and took_s < _LONGEST_WINDOW_S):
            return
        self._window = self._new_window()
        in_use = window.most_in_flight >= self.limit and window.in_flight_s >= _IN_USE * self.limit * took_s
        if not in_use or tokens <= 0:
            # Nothing can be learned while there are fewer requests than may run.
            self._move_to(self._best)
            return
        waiting = window.waiting_s / window.in_flight_s
        self._note_score(tokens / took_s * (1 - _WAITING_WEIGHT * waiting))
        self._move_to(self._next(waiting))

    def _note_score(self, value: float) -> None:
        known = self._scores.get(self.limit)
        if known is None:
            self._scores[self.limit] = _Score(value, self._now_s)
            return
        change = value / known.value
        if 1 / _SPEED_CHANGE <= change <= _SPEED_CHANGE:
            value = known.value + _SMOOTHING * (value - known.value)
        else:
            for score in self._scores.values():
                score.value, score.at_s = score.value * change, float("-inf")
        known.value, known.at_s = value, self._now_s

    def _next(self, waiting: float) -> int:
        """Return the number to measure next: the best one after any other, and after that one that may be better.

        `waiting` is the share of the requests that waited for their first tokens in the last window.
        """
        highest = max(score.value for score in self._scores.values())
        self._best = min(level for level, score in self._scores.items() if score.value >= _NEARLY * highest)
        if self.limit != self._best:
            return self._best
        higher = next((level for level in self._levels if level >= 2 * self._best), self._levels[-1])
        # If many requests wait, the server may compute only the others at once.
        served = self._best * (1 - waiting)
        lower = [level for level in self._levels if level < max(self._best * _LOWER, min(self._best, 1.2 * served))]
        candidates = [higher, *lower[-1:]]
        if waiting > _MANY_WAIT:
            candidates.reverse()
        return next((level for level in candidates if self._may_try(level)), self._best)

    def _may_try(self, level: int) -> bool:
        if level >= self._refused_from and self._now_s - self._refused_s < _REFUSED_S:
            return False
        known = self._scores.get(level)
        return known is None or self._now_s - known.at_s >= _FRESH_S

    def _move_to(self, limit: int) -> None:
        if limit != self.limit:
            self._raised_by = max(0, limit - self.limit)
            self.limit, self._changed_s, self._starts_at_change = limit, self._now_s, self._starts
            self._window = None


def _levels(most: int) -> list[int]:
    """Return the numbers that are tried: 1, 2, 3, 4, 6, 8, 11, 16, …, and `most`."""
    levels, level = {most}, 1.0
    while round(level) < most:
        levels.add(round(level))
        level *= _RATIO
    return sorted(levels)
