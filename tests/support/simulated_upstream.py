"""A server in virtual time that computes its requests in steps: what a controller of concurrency sees of a real one."""

import random
from dataclasses import dataclass, field, replace
from typing import Protocol

#: Prompt tokens in one step, as in most servers.
_CHUNK = 512


class Control(Protocol):
    """The controller of the number of requests at once."""

    limit: int

    def observe(self, now_s: float, *, in_flight: int, waiting: int, tokens: int, starts: int) -> bool: ...

    def note_refused(self, now_s: float) -> None: ...

    def note_demand(self, now_s: float) -> None: ...


@dataclass
class FixedLimit:
    """A number of requests that does not change."""

    limit: int

    def observe(self, now_s: float, *, in_flight: int, waiting: int, tokens: int, starts: int) -> bool:
        return False

    def note_refused(self, now_s: float) -> None: ...

    def note_demand(self, now_s: float) -> None: ...


@dataclass
class _Request:
    prompt_tokens: int
    tokens: int
    #: The time before which its prompt is not read, in seconds.
    ready_s: float
    #: All tokens of an answer that comes whole.
    whole_tokens: int = 0


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
    #: The most requests that the door lets through while the number of requests at once is this many times smaller: it
    #: refuses others, which the controller hears of once a second. 0: it refuses none.
    lets_through: float = 0.0
    #: More requests at once than this are refused with 429. 0: none are.
    refuses_above: int = 0
    refusals: int = 0
    #: The time that each prompt takes besides, whatever else runs, in seconds.
    prompt_s: float = 0.0
    #: Whether the answers come whole, as embeddings do: no first token is awaited.
    whole: bool = False
    now_s: float = 0.0
    tokens: int = 0
    starts: int = 0
    _queue: list[_Request] = field(default_factory=list, init=False)
    _active: list[_Request] = field(default_factory=list, init=False)
    _random: random.Random = field(default_factory=random.Random)
    #: When the controller last heard of refusals, in seconds.
    _told_s: int = -1

    def __post_init__(self) -> None:
        self._random.seed(self.seed)

    def run(self, control: Control, seconds: float) -> float:
        """Serve as many requests at once as `control` says, for so long. Return the tokens per second."""
        began_s, before = self.now_s, self.tokens
        while self.now_s < began_s + seconds:
            self._send(control)
            waiting = len(self._queue) + sum(request.prompt_tokens > 0 for request in self._active)
            waiting = 0 if self.whole else waiting
            in_flight = len(self._queue) + len(self._active)
            control.observe(self.now_s, in_flight=in_flight, waiting=waiting, tokens=self.tokens, starts=self.starts)
            self._step()
        return (self.tokens - before) / (self.now_s - began_s)

    def best_fixed(self, limits: list[int], seconds: float) -> tuple[int, float]:
        """Return the smallest of these numbers that is nearly the best one, and the highest tokens per second."""
        rates = {limit: replace(self, _random=random.Random()).run(FixedLimit(limit), seconds) for limit in limits}
        best = max(rates.values())
        return min(limit for limit, rate in rates.items() if rate >= 0.97 * best), best

    def _send(self, control: Control) -> None:
        let_through = min(self.demand, control.limit)
        if self.lets_through:
            let_through = min(let_through, max(1, round(self.lets_through * control.limit)))
            if int(self.now_s) > self._told_s:
                self._told_s = int(self.now_s)
                control.note_demand(self.now_s)
        while len(self._queue) + len(self._active) < let_through:
            if self.refuses_above and len(self._queue) + len(self._active) >= self.refuses_above:
                self.refusals += 1
                control.note_refused(self.now_s)
                return
            self._queue.append(self._new_request())

    def _new_request(self) -> _Request:
        prompt = self._random.randint(self.prompt // 2, self.prompt * 3 // 2)
        answer = 2 + int(self._random.expovariate(1 / self.answer))
        return _Request(prompt, answer, self.now_s + self.prompt_s, answer)

    def _step(self) -> None:
        while self._queue and len(self._active) < self.slots:
            self._active.append(self._queue.pop(0))
        budget, rows = _CHUNK, 0
        for request in self._active:
            if request.prompt_tokens == 0:
                request.tokens, rows = request.tokens - 1, rows + 1
                self.tokens += not self.whole
                continue
            computed = min(request.prompt_tokens, budget) if self.now_s >= request.ready_s else 0
            request.prompt_tokens, budget = request.prompt_tokens - computed, budget - computed
            if computed and not request.prompt_tokens:
                request.tokens -= 1
                if not self.whole:
                    self.tokens, self.starts = self.tokens + 1, self.starts + 1
        took_ms = self.step_ms + self.row_ms * rows + self.token_ms * (_CHUNK - budget)
        took_ms *= max(1.0, len(self._active) / self.fitting) * self.slowness
        self.now_s += took_ms / 1000
        if self.whole:
            ended = [one for one in self._active if not one.prompt_tokens and one.tokens <= 0]
            self.tokens, self.starts = self.tokens + sum(one.whole_tokens for one in ended), self.starts + len(ended)
        self._active = [one for one in self._active if one.prompt_tokens or one.tokens > 0]
