"""Estimates of a rival's queue from ended jobs: the time of a prompt token and of an answer token, answer lengths."""

from collections import deque

from bench.sim.asks import SimJob
from shared.jobs.job import Usage

#: Number of ended jobs over which each figure is averaged, and the fewest from which lengths are used.
_RECENT, _FEWEST = 128, 8
#: A short answer is the answer of this percentile, as in Penstock's claim.
_SHORT = 0.2


class _PerToken:
    """The mean time per token over the last jobs."""

    def __init__(self) -> None:
        self._spans: deque[tuple[int, int]] = deque()
        self._ms = self._tokens = 0

    def add(self, ms: int, tokens: int) -> None:
        """Add one job, and forget the oldest if there are too many."""
        self._spans.append((ms, tokens))
        self._ms, self._tokens = self._ms + ms, self._tokens + tokens
        if len(self._spans) > _RECENT:
            old_ms, old_tokens = self._spans.popleft()
            self._ms, self._tokens = self._ms - old_ms, self._tokens - old_tokens

    @property
    def mean_ms(self) -> float:
        """The mean, or 0 before the first job."""
        return self._ms / self._tokens if self._tokens else 0.0


class Estimates:
    """Averages over the last jobs of one queue. All estimates are 0 until a job has ended."""

    def __init__(self) -> None:
        self._prompt, self._answer = _PerToken(), _PerToken()
        self._lengths: dict[str, deque[int]] = {}
        self._short: dict[str, int] = {}

    def record(self, usage: Usage, outcome: str, tenant: str) -> None:
        """Add an ended job."""
        if usage.decode_ms is None or usage.prefill_ms is None:
            return
        self._prompt.add(usage.prefill_ms, usage.prompt_tokens)
        self._answer.add(usage.decode_ms, max(1, usage.completion_tokens - 1))
        if outcome != "succeeded":
            return
        for name in (tenant, ""):
            lengths = self._lengths.setdefault(name, deque(maxlen=_RECENT))
            lengths.append(usage.completion_tokens)
            if len(lengths) >= _FEWEST:
                self._short[name] = sorted(lengths)[int(_SHORT * len(lengths))]

    def short_ms(self, job: SimJob) -> float:
        """Return the time from its start to its end, in ms, if the job's answer is short for its tenant."""
        tokens = min(job.max_tokens, self._short.get(job.tenant, self._short.get("", 0)))
        return job.estimated_prompt * self._prompt.mean_ms + tokens * self._answer.mean_ms
