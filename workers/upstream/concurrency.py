"""Finds how many requests at once the upstream serves best, from its tokens per second and its first tokens; pure.

A server has a number of slots, or of sequences that fit its memory. Fewer requests leave some of it unused. With more,
requests wait inside the server, where Penstock cannot order them, and tokens per second do not grow. So the best number
is the smallest with which the server generates nearly as many tokens per second as with any other.

At first, the controller doubles the number each time the added requests have begun, as long as first tokens come nearly
as fast as with the first number and tokens per second are expected to grow. After that, it measures each number for a
window of about 1.5 s, and only while all of it is in use. The score of a number is the tokens per second, less a third
of the share of the requests that wait for their first tokens. The controller compares the best number with the next
lower and with twice the number from time to time, and ends a trial of more requests as soon as they only wait. If the
upstream becomes faster or slower as a whole, all scores are scaled by the change at the current number, so that a
slowdown does not look like a wrong number.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from workers.speed_by_load import SpeedByLoad
from workers.upstream.first_growth import FirstGrowth, Growth

#: The first number, and the ratio of two adjacent levels: from the numbers of these levels one is chosen.
_FIRST, _RATIO = 4, 2**0.5
#: The share of the best score that a smaller number must reach to be preferred.
_NEARLY = 0.93
#: By what share the score is reduced if all requests wait for their first tokens.
_WAITING_WEIGHT = 1 / 3
#: A window is measured for at least this long, and then until it has this many tokens or has taken the longest time, s.
_WINDOW_S, _WINDOW_TOKENS, _LONGEST_WINDOW_S = 1.5, 100, 5.0
#: Requests whose tokens are counted only when they end, as embeddings, need a window with this many ends for each
#: request at once, or a longer one: a window with few ends shows little.
_WINDOW_ENDS, _LONGEST_WINDOW_OF_ENDS_S = 3, 20.0
#: At first, a measurement of the speed takes at least this time, in seconds, and this many tokens, and the number is
#: raised only if the tokens per second are expected to grow by this part of the share of added requests.
_SPEED_S, _SPEED_TOKENS, _WORTHWHILE = 0.1, 16, 0.15
#: If not, the higher number is tried after this time, in seconds.
_DOUBT_S = 10.0
#: The shortest and the longest time until a new number has taken effect and its window begins, in seconds.
_SETTLE_S, _LONGEST_SETTLE_S = 0.4, 5.0
#: A window counts if all of the number was in use at some time, and this share of it on average: then the number was
#: the limit, and not the demand. The rest allows for the time that a worker takes to claim the next job.
_IN_USE = 0.7
#: If the door refuses requests, a window with this share in use is followed by a higher number: the number may be why
#: there are not more requests. A refusal counts as demand for this long, in seconds.
_PARTLY_IN_USE, _DEMAND_S = 0.4, 3.0
#: Scores are measured again after this time, and a number whose trial was ended after the second one, in seconds.
_FRESH_S, _ENDED_TRIAL_S = 20.0, 60.0
#: A trial of a higher number ends after this time, in seconds, if this share more of the requests waits for first
#: tokens. With twice as many requests as slots, half of them do.
_SHORTEST_TRIAL_S, _MORE_WAIT = 0.5, 0.3
#: A score that differs from the last one by more than this factor says that the upstream's speed has changed.
_SPEED_CHANGE = 1.33
#: The weight of a new score of a number that was measured before.
_SMOOTHING = 0.5
#: The next lower number that is tried is less than this share of the best one. If more than the second share of the
#: requests wait for their first tokens, it is tried before a higher one.
_LOWER, _MANY_WAIT = 0.75, 0.4
#: The share of the number that is left if the upstream refuses a request, at most once in this time, in seconds; and
#: how long the number at which it refused is not tried again.
_DECREASE, _ONE_DECREASE_S, _REFUSED_S = 0.7, 1.0, 30.0


@dataclass
class _Score:
    """A measurement with one number: tokens per second, reduced for waiting requests, and when it was.

    `waiting` is the share of the requests that waited for their first tokens.
    """

    value: float
    at_s: float
    waiting: float


@dataclass
class _Window:
    """Sums since the begin of a measurement. The first two are integrals over time."""

    began_s: float
    tokens_before: int
    starts_before: int
    in_flight_s: float = 0.0
    waiting_s: float = 0.0
    most_in_flight: int = 0

    @property
    def waiting(self) -> float:
        return self.waiting_s / self.in_flight_s if self.in_flight_s else 0.0


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
        #: Number → when a trial of it was ended because the added requests only waited.
        self._ended_trials: dict[int, float] = {}
        self._refused_from, self._refused_s = most + 1, float("-inf")
        #: When the door last refused requests.
        self._demanded_s = float("-inf")
        # The last observation.
        self._now_s, self._in_flight, self._waiting, self._tokens, self._starts = now_s, 0, 0, 0, 0
        self._changed_s, self._starts_at_change, self._raised_by = now_s, 0, 0
        self._window: _Window | None = None
        #: None once the number has been measured.
        self._first: FirstGrowth | None = FirstGrowth(now_s, self.limit)
        self._speed = SpeedByLoad()
        #: The time, the tokens, and the integrals of the requests in flight and of their square since the speed was
        #: measured last.
        self._unmeasured = [0.0] * 4

    def observe(self, now_s: float, *, in_flight: int, waiting: int, tokens: int, starts: int) -> bool:
        """Record the present state: at each change, and from time to time. Return whether the limit was raised.

        `waiting` is how many of the requests in flight have no token yet, without those that have no first token.
        `tokens` counts the tokens so far, and `starts` the first tokens or, without any, the answers.
        """
        if self._fixed:
            return False
        before = self.limit
        passed_s = max(0.0, now_s - self._now_s)
        if self._first is not None:
            self._measure_speed(self._first, passed_s, tokens - self._tokens)
        if self._window is not None:
            self._window.in_flight_s += passed_s * self._in_flight
            self._window.waiting_s += passed_s * self._waiting
        self._now_s, self._in_flight, self._waiting = now_s, in_flight, waiting
        self._tokens, self._starts = tokens, starts
        if self._first is not None:
            self._first.observe(now_s, in_flight=in_flight, waiting=waiting)
            self._grow_at_first(self._first)
        elif self._window is None:
            self._begin_if_settled()
        else:
            self._window.most_in_flight = max(self._window.most_in_flight, in_flight)
            self._end_if_measured(self._window)
        return self.limit > before

    def note_refused(self, now_s: float) -> None:
        if self._fixed or now_s - self._refused_s < _ONE_DECREASE_S:
            return
        # After a decrease, requests of the larger number may still run, and one of them may have been refused.
        refused = max(self.limit, self._in_flight)
        self._first, self._refused_from, self._refused_s = None, refused, now_s
        # Scores of numbers that the server refuses are no longer valid.
        self._scores = {level: score for level, score in self._scores.items() if level < refused}
        self._best = min(self.limit, max(1, int(refused * _DECREASE)))
        self._move_to(self._best)

    def note_demand(self, now_s: float) -> None:
        """Record that the door has refused requests because of the load: there are more than it lets through."""
        self._demanded_s = now_s

    @property
    def _is_demanded(self) -> bool:
        return self._now_s - self._demanded_s <= _DEMAND_S

    def _measure_speed(self, first: FirstGrowth, passed_s: float, tokens: int) -> None:
        new = (passed_s, tokens, passed_s * self._in_flight, passed_s * self._in_flight**2)
        self._unmeasured = [before + value for before, value in zip(self._unmeasured, new, strict=True)]
        took_s, counted, in_flight_s, in_flight_squared_s = self._unmeasured
        if took_s >= _SPEED_S and counted >= _SPEED_TOKENS:
            self._speed.add(counted, in_flight_s, in_flight_squared_s)
            self._unmeasured, first.is_measured = [0.0] * 4, True

    def _grow_at_first(self, first: FirstGrowth) -> None:
        """Double the number while first tokens come fast. Then measure, beginning with the last fast number."""
        growth = first.verdict(self.limit, self._starts, refuses=self._is_demanded)
        if growth is Growth.GROW and self.limit < self._levels[-1]:
            self._best = self.limit
            higher = self._higher()
            needed = 1 + _WORTHWHILE * (higher / self.limit - 1)
            if self._speed.rate(higher) < needed * self._speed.rate(self.limit):
                # The next lower number is compared before the higher one.
                self._first, self._ended_trials[higher] = None, self._now_s + _DOUBT_S - _ENDED_TRIAL_S
                return
            self._move_to(higher)
            first.note_limit(self._raised_by, self._starts)
        elif growth is not Growth.WAIT:
            self._first = None
            if growth is Growth.SLOW:
                self._move_to(self._best)
            self._best = self.limit

    def _begin_if_settled(self) -> None:
        """Begin a window when the requests that the last change added have begun, or those that it removed are gone."""
        since_s = self._now_s - self._changed_s
        has_started = self._starts - self._starts_at_change >= self._raised_by
        settled = since_s >= _SETTLE_S and has_started and self._in_flight <= self.limit
        if settled or (since_s >= _LONGEST_SETTLE_S and self._in_flight <= self.limit):
            self._window = self._new_window()

    def _new_window(self) -> _Window:
        return _Window(self._now_s, self._tokens, self._starts, most_in_flight=self._in_flight)

    def _end_if_measured(self, window: _Window) -> None:
        took_s = self._now_s - window.began_s
        tokens = self._tokens - window.tokens_before
        if self._only_waits(window, took_s):
            # The larger number may look faster for so short a time, but it is not preferred.
            self._ended_trials[self.limit] = self._now_s
            self._move_to(self._best)
            return
        if not self._is_measured(window, took_s, tokens):
            return
        self._window = self._new_window()
        in_use = window.in_flight_s / (self.limit * took_s)
        if window.most_in_flight < self.limit or in_use < _IN_USE or tokens <= 0:
            # Nothing can be learned while there are fewer requests than may run, unless the door refuses them.
            if self._is_demanded and in_use >= _PARTLY_IN_USE and self.limit == self._best and tokens > 0:
                self._best = self._best_in_part(window)
            self._move_to(self._best)
            return
        self._note_score(tokens / took_s * (1 - _WAITING_WEIGHT * window.waiting), window.waiting)
        self._move_to(self._next(window.waiting))

    def _best_in_part(self, window: _Window) -> int:
        """Return the number after a window that used a part of it while the door refused requests.

        It is the next higher one if few requests have waited for first tokens, and the next lower one if many have.
        """
        if window.waiting > _MANY_WAIT:
            return max((level for level in self._levels if level < self._best), default=self._best)
        return self._higher() if self._may_try(self._higher()) and window.waiting <= _MORE_WAIT else self._best

    def _only_waits(self, window: _Window, took_s: float) -> bool:
        """Whether a trial of a higher number has added only requests that wait for their first tokens."""
        best = self._scores.get(self._best)
        if best is None or self.limit <= self._best or took_s < _SHORTEST_TRIAL_S:
            return False
        return window.waiting - best.waiting > _MORE_WAIT * (1 - best.waiting)

    def _is_measured(self, window: _Window, took_s: float, tokens: int) -> bool:
        ends = self._starts - window.starts_before
        if ends and not window.waiting_s:
            # No first token is awaited, so tokens are counted when requests end.
            return (took_s >= _WINDOW_S and ends >= _WINDOW_ENDS * self.limit) or took_s >= _LONGEST_WINDOW_OF_ENDS_S
        return took_s >= _WINDOW_S and (tokens >= _WINDOW_TOKENS or took_s >= _LONGEST_WINDOW_S)

    def _note_score(self, value: float, waiting: float) -> None:
        if self.limit >= self._refused_from:
            self._refused_from = self._levels[-1] + 1
        known = self._scores.get(self.limit)
        if known is None or known.at_s == float("-inf"):
            # A score that was scaled for a change at another number is only a guess. It says nothing about the speed.
            self._scores[self.limit] = _Score(value, self._now_s, waiting)
            return
        change = value / known.value
        if 1 / _SPEED_CHANGE <= change <= _SPEED_CHANGE:
            value = known.value + _SMOOTHING * (value - known.value)
        else:
            for score in self._scores.values():
                score.value, score.at_s = score.value * change, float("-inf")
            self._ended_trials.clear()
        known.value, known.at_s, known.waiting = value, self._now_s, waiting

    def _next(self, waiting: float) -> int:
        """Return the number to measure next: the best one after any other, and after that one that may be better.

        `waiting` is the share of the requests that waited for their first tokens in the last window.
        """
        highest = max(score.value for score in self._scores.values())
        self._best = min(level for level, score in self._scores.items() if score.value >= _NEARLY * highest)
        if self.limit != self._best:
            return self._best
        # If many requests wait, the server may compute only the others at once.
        served = self._best * (1 - waiting)
        lower = [level for level in self._levels if level < max(self._best * _LOWER, min(self._best, 1.2 * served))]
        candidates = [self._higher(), *lower[-1:]]
        if waiting > _MANY_WAIT:
            candidates.reverse()
        return next((level for level in candidates if self._may_try(level)), self._best)

    def _higher(self) -> int:
        """Return the higher number to try: twice the best one, but at most the number at which the upstream refused."""
        most = min(self._levels[-1], max(self._best, self._refused_from))
        return next((level for level in self._levels if 2 * self._best <= level < most), most)

    def _may_try(self, level: int) -> bool:
        if level >= self._refused_from and self._now_s - self._refused_s < _REFUSED_S:
            return False
        if self._now_s - self._ended_trials.get(level, float("-inf")) < _ENDED_TRIAL_S:
            return False
        known = self._scores.get(level)
        return known is None or self._now_s - known.at_s >= _FRESH_S

    def _move_to(self, limit: int) -> None:
        if limit != self.limit:
            self._raised_by = max(0, limit - self.limit)
            self.limit, self._changed_s, self._starts_at_change = limit, self._now_s, self._starts
            self._window, self._unmeasured = None, [0.0] * 4


def places_in_use(places: Sequence[int], limit: int) -> int:
    """Return how many places the requests take. Each takes one for each answer that it asks for.

    The last one may have taken more than were free. Such places do not count, because the limit allows them.
    """
    return max(sum(places) - max(places, default=1) + 1, min(sum(places), limit))


def _levels(most: int) -> list[int]:
    """Return the numbers that are tried: 1, 2, 3, 4, 6, 8, 11, 16, …, and `most`."""
    levels, level = {most}, 1.0
    while round(level) < most:
        levels.add(round(level))
        level *= _RATIO
    return sorted(levels)
