"""The state and the counters of one job inside the engine."""

import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

import numpy as np

from shared.jobs.job import Usage
from workers.engine.answer.candidates import Candidates
from workers.engine.answer.growing import GrowingAnswer, text_readers
from workers.engine.backend import Prepared
from workers.engine.cells.prefix_cache import CachedTokens, Tokens
from workers.engine.events import Text


class SequenceState(Enum):
    """The states of a sequence: WAITING → PREFILL → DECODE → ENDED.

    PREFILL and DECODE can change to PAUSED, and PAUSED to WAITING. Each state can change to ENDED.
    """

    #: The sequence is in the engine, but has no slot yet.
    WAITING = "waiting"
    #: The sequence has a slot, but its prompt is not completely computed yet.
    PREFILL = "prefill"
    #: The sequence generates one token in each step.
    DECODE = "decode"
    #: The sequence had a slot, and gave it up for others. It has kept its answer so far.
    PAUSED = "paused"
    #: The sequence no longer has a slot. Its Ended event is being emitted or was emitted.
    ENDED = "ended"


@dataclass(slots=True, eq=False)
class Sequence(GrowingAnswer):
    """A job inside the engine, with its counters. Only the engine's thread uses it."""

    state: SequenceState = SequenceState.WAITING
    slot: int = -1
    #: Number of prompt and answer tokens whose keys and values are in the slot's KV cells.
    n_past: int = 0
    #: Number of prompt and answer tokens that the sequence or an earlier attempt has computed so far.
    n_computed: int = 0
    #: Number of tokens that this sequence computed although it or an earlier attempt had computed them before.
    recomputed: int = 0
    #: Number of prompt tokens that the sequence did not compute, but reused from an earlier one (prefix reuse).
    cached_tokens: int = 0
    #: Number of tokens that the last step computed for this sequence.
    last_step_tokens: int = 0
    #: End time of the last step that computed tokens of this sequence.
    last_step_end_s: float = -math.inf
    #: Number of the answer's tokens that were known when the sequence got its slot. They are read like a prompt.
    resumed: int = 0
    #: CPU time that the answer's grammar had taken when the last token was sampled.
    grammar_cpu_s: float = 0.0
    #: What of this time it took before the sequence got its slot.
    grammar_before_s: float = 0.0
    #: While the sequence is paused: what the backend keeps for it, and the fields of its answer so far.
    saved: Any = None
    extra: dict[str, Any] = field(default_factory=dict)
    #: When the last pause began, and how long the pauses before and after the answer's first token took together.
    paused_at_s: float | None = None
    paused_in_prefill_s: float = 0.0
    paused_in_decode_s: float = 0.0
    started_s: float | None = None
    first_token_s: float | None = None

    @classmethod
    def create(cls, job: Prepared, now_s: float) -> "Sequence":
        """Return a sequence that waits for a slot."""
        sequence = cls(job, now_s, *text_readers(job), candidates=Candidates.of(job))
        if job.keeps_logprobs:
            # The log probabilities of the earlier attempt's tokens follow from their logits.
            sequence.known = deque(job.spec.answer)
        else:
            sequence.answer = list(job.spec.answer)
        sequence.n_reported = len(job.spec.answer)
        return sequence

    def pause(self, now_s: float) -> None:
        """Record that the sequence has given up its slot, or its wait for one."""
        self.state, self.paused_at_s = SequenceState.PAUSED, now_s

    def resume(self, now_s: float) -> None:
        """Record that the pause has ended. The sequence waits for a slot."""
        self._count_pause(now_s)
        self.state, self.paused_at_s = SequenceState.WAITING, None

    def _count_pause(self, now_s: float) -> None:
        paused_s = 0.0 if self.paused_at_s is None else now_s - self.paused_at_s
        if self.first_token_s is None:
            self.paused_in_prefill_s += paused_s
        else:
            self.paused_in_decode_s += paused_s

    def begin_candidate(self, n_past: int) -> None:
        """Begin the next candidate. The slot holds the first `n_past` tokens of the prompt."""
        self.restart()
        self.state, self.saved, self.resumed, self.n_past = SequenceState.PREFILL, None, 0, n_past
        self.n_computed = self.job.prompt_tokens + max(0, self.known_here - 1)
        self.grammar_before_s = self.grammar_cpu_s

    def repeat(self, piece: Callable[[int], bytes]) -> None:
        """Read the text of the answer that earlier attempts generated: see `GrowingAnswer.repeat`."""
        super(Sequence, self).repeat(piece)
        if self.job.spec.answer:
            self.n_computed = self.job.prompt_tokens + max(0, len(self.answer) + self.known_here - 1)

    def with_own_fields(self, extra: dict[str, Any]) -> dict[str, Any]:
        """Return the answer's fields other than its text, with its tokens of reasoning and what stopped it."""
        reasoning = {"reasoning_tokens": self.reasoning_tokens} if self.reasoning_tokens else {}
        if self.candidates is not None:
            return self.candidates.fields(extra) | reasoning
        stopped_by = self.detokenizer.stopped_by
        return extra | reasoning | ({"stop_sequence": stopped_by} if stopped_by else {})

    def text_event(self, text: str) -> Text:
        """Return an event for new text of the answer. It carries the words that no earlier event carried."""
        tokens = tuple(self.words[self.n_reported :])
        self.n_reported = len(self.words)
        return Text(self.key, text, self.n_reported, self.grammar_cpu_s, tokens)

    def computed_before(self, n: int) -> int:
        """Return how many of the next `n` tokens were computed already, before a pause or by an earlier attempt."""
        return max(0, min(self.n_past + n, self.n_computed) - self.n_past)

    def note_step(self, n: int, now_s: float) -> None:
        """Record that a step computed `n` tokens of this sequence and ended at `now_s`."""
        self.n_past += n
        self.n_computed = max(self.n_computed, self.n_past)
        self.last_step_tokens, self.last_step_end_s = n, now_s

    def note_grammar(self, cpu_s: float) -> float:
        """Record that the answer's grammar has taken `cpu_s` in this slot, and return how much was added."""
        cpu_s += self.grammar_before_s
        grown_s, self.grammar_cpu_s = cpu_s - self.grammar_cpu_s, cpu_s
        return grown_s

    def tokens_computed_after(self, time_s: float) -> int:
        """Return how many tokens of this sequence were computed in steps that ended after `time_s`.

        It is enough to look at the last step, because a sequence ends at most one step after it is canceled or expires.
        """
        return self.last_step_tokens if self.last_step_end_s > time_s else 0

    @property
    def prompt_left(self) -> int:
        """Number of known tokens that are not computed yet: the prompt's, and those of the answer up to a pause."""
        return max(0, self.job.prompt_tokens + self.resumed - self.n_past)

    @property
    def known_tokens(self) -> Tokens:
        """The prompt's tokens and those of the answer so far."""
        tokens: Tokens = self.job.prompt
        return np.concatenate([tokens, np.array(self.answer, np.int32)]) if self.answer else tokens

    @property
    def cached(self) -> CachedTokens:
        """The tokens whose keys and values are in the slot's KV cells now."""
        prompt = self.job.prompt[: self.n_past]
        answer = self.answer[: max(0, self.n_past - self.job.prompt_tokens)]
        tokens = np.concatenate([prompt, answer]).astype(np.int32) if answer else prompt
        return CachedTokens(self.job.spec.tenant, tokens)

    @property
    def stage(self) -> str:
        """The stage, as a value of `Stage`: `prefill` until the first token is generated, then `decode`."""
        return "prefill" if self.first_token_s is None else "decode"

    @property
    def expires_at_s(self) -> float:
        """Time at which the sequence expires.

        Until the first token of the answer is generated, this is the earlier of its deadline and its start deadline.
        After that, it is the deadline.
        """
        spec = self.job.spec
        if spec.start_by_s is None or spec.answer or self.first_token_s is not None:
            return spec.deadline_s
        return min(spec.deadline_s, spec.start_by_s)

    def usage(self, now_s: float) -> Usage:
        """Return the sequence's token counts, and its durations up to `now_s`, which is when it ends.

        `prefill_ms` and `decode_ms` do not include pauses, because the engine's rates are computed from them.
        """
        started, first = self.started_s, self.first_token_s
        self._count_pause(now_s)
        return Usage(
            prompt_tokens=self.job.prompt_tokens,
            cached_tokens=self.cached_tokens,
            completion_tokens=self.completion_tokens,
            prefill_ms=None if started is None else _ms((first or now_s) - started - self.paused_in_prefill_s),
            decode_ms=None if first is None else _ms(now_s - first - self.paused_in_decode_s),
            ttft_ms=None if first is None else _ms(first - self.submitted_s),
            again_tokens=self.recomputed,
            unread_tokens=max(0, self.job.prompt_tokens - max(self.n_past, self.n_computed)),
        )


def _ms(seconds: float) -> int:
    return round(seconds * 1000)
