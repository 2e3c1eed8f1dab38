"""What a rival's queue learns from ended jobs: the time of a prompt token and of an answer token, answer lengths."""

from collections import deque

from bench.sim.asks import SimJob
from shared.jobs.job import Usage

#: Number of ended jobs over which each figure is averaged, and the fewest from which lengths are used.
_RECENT, _FEWEST = 128, 8
#: A short answer is the answer of this percentile, as in Penstock's claim.
_SHORT = 0.2


class Estimates:
    """Averages over the last jobs of one queue. All estimates are 0 until a job has ended."""

    def __init__(self) -> None:
        self._prompts: deque[tuple[int, int]] = deque(maxlen=_RECENT)
        self._answers: deque[tuple[int, int]] = deque(maxlen=_RECENT)
        self._lengths: dict[str, deque[int]] = {}
        self._short: dict[str, int] = {}

    def record(self, usage: Usage, outcome: str, tenant: str) -> None:
        """Add an ended job."""
        if usage.decode_ms is None or usage.prefill_ms is None:
            return
        self._prompts.append((usage.prefill_ms, usage.prompt_tokens))
        self._answers.append((usage.decode_ms, max(1, usage.completion_tokens - 1)))
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
        return job.estimated_prompt * _per_token_ms(self._prompts) + tokens * _per_token_ms(self._answers)


def _per_token_ms(spans: deque[tuple[int, int]]) -> float:
    return sum(ms for ms, _ in spans) / sum(tokens for _, tokens in spans) if spans else 0.0
