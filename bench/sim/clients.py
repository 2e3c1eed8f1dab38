"""What clients do with a refusal: give up, heed the hint, do as the OpenAI package does, or hammer on."""

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from bench.sim.asks import Answer, Ask

#: The OpenAI package's own backoff in s: first, most; and the longest Retry-After that it heeds.
_FIRST_S, _MOST_S, _LONGEST_HINT_S = 0.5, 8.0, 120.0


class Client(Protocol):
    """How somebody who was refused goes on."""

    def comes_back_after(self, ask: Ask, answer: Answer, now_ms: float, rng: np.random.Generator) -> float | None:
        """Ms until the next attempt, None to give up."""


@dataclass(frozen=True)
class OneTry:
    """An open loop: whoever is refused is gone."""

    def comes_back_after(self, ask: Ask, answer: Answer, now_ms: float, rng: np.random.Generator) -> float | None:  # noqa: ARG002 - the Protocol's names
        """Never."""
        return None


@dataclass(frozen=True)
class OpenAIPackage:
    """The package's rules: hints heeded when given, else 0.5 s doubled up to 8 s, less up to a quarter.

    `heeds`: the share of asks whose client sees our headers; the others' are lost on the way (a proxy that
    strips them, a library that ignores them) and they back off by the package's own rule.
    """

    retries: int = 2
    heeds: float = 1.0

    def comes_back_after(self, ask: Ask, answer: Answer, now_ms: float, rng: np.random.Generator) -> float | None:  # noqa: ARG002 - the Protocol's names
        """By `_calculate_retry_timeout` and `_should_retry` of openai 3.52."""
        if ask.attempts > self.retries:
            return None
        # The same ask is of the same kind at each attempt, in every run: golden-ratio hashing of its number.
        if (ask.number * 0.618_033_988_75) % 1.0 < self.heeds:
            if not answer.worth_retrying or answer.hint_ms > _LONGEST_HINT_S * 1_000:
                return None
            if answer.hint_ms > 0:
                return float(answer.hint_ms)
        seconds: float = min(_FIRST_S * 2.0 ** (ask.attempts - 1), _MOST_S)
        return 1_000 * seconds * (1 - 0.25 * float(rng.random()))


@dataclass(frozen=True)
class Layered:
    """Retries inside retries: a package that tries three times inside a job that tries six times, 18 in all.

    The outer layer waits a second longer after each of its own tries.
    """

    inner: int = 3
    outer: int = 6
    heeds: float = 1.0

    def comes_back_after(self, ask: Ask, answer: Answer, now_ms: float, rng: np.random.Generator) -> float | None:
        """The inner layer's rule; at its end the outer one begins anew."""
        if ask.attempts >= self.inner * self.outer:
            return None
        if ask.attempts % self.inner == 0:
            return 1_000.0 * (ask.attempts // self.inner)
        inner = OpenAIPackage(retries=self.inner * self.outer, heeds=self.heeds)
        waits = inner.comes_back_after(ask, answer, now_ms, rng)
        # The inner layer was told not to come back: the outer one, which was not told, does.
        return 1_000.0 * (1 + ask.attempts // self.inner) if waits is None else waits
