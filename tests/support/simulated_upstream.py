"""A server in virtual time that computes its requests in steps: what a controller of concurrency sees of a real one."""

import random
from dataclasses import dataclass, field, replace
from typing import Protocol

#: Prompt tokens in one step, as in most servers.
_CHUNK = 512


class Control(Protocol):
    """What decides how many requests there are at once."""

    limit: int

    def observe(self, now_s: float, *, in_flight: int, waiting: int, tokens: int, starts: int) -> bool: ...


@dataclass
class FixedLimit:
    """A number of requests that does not change."""

    limit: int

    def observe(self, now_s: float, *, in_flight: int, waiting: int, tokens: int, starts: int) -> bool:
        return False


@dataclass
class _Request:
    prompt_tokens: int
    tokens: int


@dataclass
class SimulatedUpstream:
    """A server with `slots` slots, in front of a queue without a bound.

    A step takes `step_ms`, and more for each stream and for each prompt token. With more than `fitting` requests in the
    slots, each step takes longer by the share of those that do not fit. `prompt` and `answer` are mean lengths.
    """

    slots: int
    step_ms: float
    row_ms: float
    token_ms: float
    prompt: int
    answer: int
    fitting: int = 1 << 30
    seed: int = 1
    #: How many times slower than at first everything is.
    slowness: float = 1.0
    #: The most requests that clients have at once.
    demand: int = 1 << 30
    now_s: float = 0.0
    tokens: int = 0
    starts: int = 0
    _queue: list[_Request] = field(default_factory=list)
    _active: list[_Request] = field(default_factory=list)
    _random: random.Random = field(default_factory=random.Random)

    def __post_init__(self) -> None:
        self._random.seed(self.seed)

    def run(self, control: Control, seconds: float) -> float:
        """Serve as many requests at once as `control` says, for so long. Return the tokens per second."""
        began_s, before = self.now_s, self.tokens
        while self.now_s < began_s + seconds:
            while len(self._queue) + len(self._active) < min(self.demand, control.limit):
                self._queue.append(self._new_request())
            waiting = len(self._queue) + sum(request.prompt_tokens > 0 for request in self._active)
            in_flight = len(self._queue) + len(self._active)
            control.observe(self.now_s, in_flight=in_flight, waiting=waiting, tokens=self.tokens, starts=self.starts)
            self._step()
        return (self.tokens - before) / (self.now_s - began_s)

    def best_fixed(self, limits: list[int], seconds: float) -> tuple[int, float]:
        """Return the smallest of these numbers that is nearly the best one, and the highest tokens per second."""
        rates = {limit: replace(self, _random=random.Random()).run(FixedLimit(limit), seconds) for limit in limits}
        best = max(rates.values())
        return min(limit for limit, rate in rates.items() if rate >= 0.97 * best), best

    def _new_request(self) -> _Request:
        prompt = self._random.randint(self.prompt // 2, self.prompt * 3 // 2)
        return _Request(prompt, 2 + int(self._random.expovariate(1 / self.answer)))

    def _step(self) -> None:
        while self._queue and len(self._active) < self.slots:
            self._active.append(self._queue.pop(0))
        budget, rows = _CHUNK, 0
        for request in self._active:
            if request.prompt_tokens == 0:
                request.tokens, self.tokens, rows = request.tokens - 1, self.tokens + 1, rows + 1
                continue
            computed = min(request.prompt_tokens, budget)
            request.prompt_tokens, budget = request.prompt_tokens - computed, budget - computed
            if computed and not request.prompt_tokens:
                request.tokens, self.tokens, self.starts = request.tokens - 1, self.tokens + 1, self.starts + 1
        took_ms = self.step_ms + self.row_ms * rows + self.token_ms * (_CHUNK - budget)
        took_ms *= max(1.0, len(self._active) / self.fitting) * self.slowness
        self.now_s += took_ms / 1000
        self._active = [one for one in self._active if one.prompt_tokens or one.tokens > 0]
