"""How clients react to a refusal: they give up, retry as the OpenAI package does, or retry in nested layers."""

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from bench.sim.asks import Answer, SimJob

#: The OpenAI package's own backoff in s: the first delay, the longest delay, and the longest Retry-After it obeys.
_FIRST_S, _MOST_S, _LONGEST_HINT_S = 0.5, 8.0, 120.0


class Client(Protocol):
    """A client's rule for retries after a refusal."""

    def retry_delay_ms(self, job: SimJob, answer: Answer, now_ms: float, rng: np.random.Generator) -> float | None:
        """Return the ms until the next attempt, or None if the client gives up."""


@dataclass(frozen=True)
class OneTry:
    """A client that never retries, for an open loop."""

    def retry_delay_ms(self, job: SimJob, answer: Answer, now_ms: float, rng: np.random.Generator) -> float | None:  # noqa: ARG002 - the Protocol's names
        """Return None: the client gives up."""
        return None


@dataclass(frozen=True)
class OpenAIPackage:
    """The OpenAI package's rules: it obeys a hint; without one it waits 0.5 s, doubled up to 8 s, less up to a quarter.

    `heeds` is the share of jobs whose client receives the door's headers. The headers of the others are lost on the
    way (a proxy strips them, or a library ignores them), and these clients back off by the package's own rule.
    """

    retries: int = 2
    heeds: float = 1.0

    def retry_delay_ms(self, job: SimJob, answer: Answer, now_ms: float, rng: np.random.Generator) -> float | None:  # noqa: ARG002 - the Protocol's names
        """Return the delay that `_calculate_retry_timeout` and `_should_retry` of openai 3.52 give."""
        if job.attempts > self.retries:
            return None
        # A hash of the job's number (golden ratio) makes the same choice at each attempt of a job and in every run.
        if (job.number * 0.618_033_988_75) % 1.0 < self.heeds:
            if not answer.worth_retrying or answer.hint_ms > _LONGEST_HINT_S * 1_000:
                return None
            if answer.hint_ms > 0:
                return float(answer.hint_ms)
        seconds: float = min(_FIRST_S * 2.0 ** (job.attempts - 1), _MOST_S)
        return 1_000 * seconds * (1 - 0.25 * float(rng.random()))


@dataclass(frozen=True)
class Layered:
    """Nested retries: a package that tries three times, inside a program that tries six times, 18 tries in total.

    The outer layer waits one second longer after each of its own tries.
    """

    inner: int = 3
    outer: int = 6
    heeds: float = 1.0

    def retry_delay_ms(self, job: SimJob, answer: Answer, now_ms: float, rng: np.random.Generator) -> float | None:
        """Return the inner layer's delay; when the inner layer gives up, the outer layer starts it again."""
        if job.attempts >= self.inner * self.outer:
            return None
        if job.attempts % self.inner == 0:
            return 1_000.0 * (job.attempts // self.inner)
        inner = OpenAIPackage(retries=self.inner * self.outer, heeds=self.heeds)
        delay_ms = inner.retry_delay_ms(job, answer, now_ms, rng)
        # The inner layer obeys `x-should-retry: false` and gives up. The outer layer does not see it and retries.
        return 1_000.0 * (1 + job.attempts // self.inner) if delay_ms is None else delay_ms


@dataclass(frozen=True)
class Hammer:
    """A client that ignores hints and retries at a fixed interval."""

    retries: int = 20
    interval_ms: float = 250.0

    def retry_delay_ms(self, job: SimJob, answer: Answer, now_ms: float, rng: np.random.Generator) -> float | None:  # noqa: ARG002 - the Protocol's names
        """Return the interval, up to a tenth shorter, so that clients do not act in step."""
        if job.attempts > self.retries:
            return None
        return self.interval_ms * (1 - 0.1 * float(rng.random()))
