"""One job inside the engine: where it is, what it has counted, what it will report."""

import math
from dataclasses import dataclass, field
from enum import Enum

import numpy as np

from shared.jobs.job import Usage
from workers.engine.backend import Prepared
from workers.engine.detokenizer import Detokenizer
from workers.engine.prefix_cache import Known


class SequenceState(Enum):
    """Where a sequence is. WAITING → PREFILL → DECODE → ENDED; it may end from any of them."""

    #: In the engine, without a slot.
    WAITING = "waiting"
    #: Has a slot; some of its prompt is not computed yet.
    PREFILL = "prefill"
    #: Each step gives it a token.
    DECODE = "decode"
    #: Its Ended event is out; nothing of it is left.
    ENDED = "ended"


@dataclass(slots=True, eq=False)
class Sequence:
    """A job with its counters. Only the engine's thread touches it."""

    job: Prepared
    submitted_s: float
    text: Detokenizer
    state: SequenceState = SequenceState.WAITING
    slot: int = -1
    #: Prompt and answer tokens whose keys and values are in the slot.
    n_past: int = 0
    #: Prompt tokens that were already in the slot when the sequence took it.
    cached_tokens: int = 0
    #: Tokens that its last step fed, and when that step was over.
    last_n: int = 0
    last_at_s: float = -math.inf
    #: The answer's tokens; the last one is not yet fed.
    answer: list[int] = field(default_factory=list)
    started_s: float | None = None
    first_token_s: float | None = None

    @classmethod
    def of(cls, job: Prepared, now_s: float) -> "Sequence":
        """A sequence that waits for its slot."""
        return cls(job, now_s, Detokenizer(job.sampling.stop, strip_space=job.strip_space))

    def note_step(self, n: int, now_s: float) -> None:
        """A step has fed it `n` tokens."""
        self.n_past += n
        self.last_n, self.last_at_s = n, now_s

    def computed_after(self, moment_s: float) -> int:
        """Tokens of its last step if that was not over by then; more than one step late nothing ends."""
        return self.last_n if self.last_at_s > moment_s else 0

    @property
    def key(self) -> str:
        """The job's key, `<id>:<claim token>`."""
        return self.job.spec.key

    @property
    def prompt_left(self) -> int:
        """Prompt tokens still to compute."""
        return max(0, self.job.prompt_tokens - self.n_past)

    @property
    def tokens_left(self) -> int:
        """Tokens until its end at the latest."""
        return self.job.max_tokens - len(self.answer)

    @property
    def last_token(self) -> int:
        """The token to feed in the next step."""
        return self.answer[-1]

    @property
    def completion_tokens(self) -> int:
        """Tokens generated so far."""
        return len(self.answer)

    @property
    def known(self) -> Known:
        """What its slot holds by now."""
        prompt = self.job.prompt[: self.n_past]
        answer = self.answer[: max(0, self.n_past - self.job.prompt_tokens)]
        return Known(self.job.spec.tenant, np.concatenate([prompt, answer]).astype(np.int32) if answer else prompt)

    @property
    def stage(self) -> str:
        """`decode` once it has a token, `prefill` before; a Stage value."""
        return "prefill" if self.first_token_s is None else "decode"

    @property
    def late_from_s(self) -> float:
        """From when on nobody waits for it any more: its deadline, or the start that it has to make."""
        spec = self.job.spec
        if spec.start_by_s is None or self.first_token_s is not None:
            return spec.deadline_s
        return min(spec.deadline_s, spec.start_by_s)

    def usage(self, now_s: float) -> Usage:
        """The sequence's books at `now_s`."""
        started, first = self.started_s, self.first_token_s
        return Usage(
            prompt_tokens=self.job.prompt_tokens,
            cached_tokens=self.cached_tokens,
            completion_tokens=self.completion_tokens,
            prefill_ms=None if started is None else _ms((now_s if first is None else first) - started),
            decode_ms=None if first is None else _ms(now_s - first),
            ttft_ms=None if first is None else _ms(first - self.submitted_s),
            unread_tokens=self.prompt_left,
        )


def _ms(seconds: float) -> int:
    return round(seconds * 1000)
