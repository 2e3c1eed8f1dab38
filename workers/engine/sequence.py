"""The state and the counters of one answer inside the engine: a job's only one, or one of its candidates."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

import numpy as np

from workers.engine.answer.candidates import job_of_candidate, prompt_number
from workers.engine.answer.growing import GrowingAnswer, text_readers
from workers.engine.answer.times import JobTimes
from workers.engine.answer.words import is_end
from workers.engine.backend import Prepared
from workers.engine.prefix_cache import CachedTokens, Owner, Scope, Tokens


class SequenceState(Enum):
    """The states of a sequence: WAITING → PREFILL → DECODE → ENDED.

    PREFILL and DECODE can change to PAUSED, and PAUSED to PREFILL. Each state can change to ENDED.
    """

    #: The sequence is in the engine, and has had no slot yet.
    WAITING = "waiting"
    #: The sequence has a slot, but its prompt is not completely computed yet.
    PREFILL = "prefill"
    #: The sequence generates one token in each step.
    DECODE = "decode"
    #: The sequence had a slot, and gave it up for others. It has kept its answer so far.
    PAUSED = "paused"
    #: The sequence no longer has a slot. Its end was told or is being told.
    ENDED = "ended"


@dataclass(slots=True, eq=False)
class Sequence(GrowingAnswer):
    """An answer inside the engine, with its counters. Only the engine's thread uses it."""

    #: The number of its prompt, which further candidates of the job may share.
    prompt_number: int = 0
    state: SequenceState = SequenceState.WAITING
    slot: int = -1
    #: Number of prompt and answer tokens whose keys and values are in the slot's KV cells.
    n_past: int = 0
    #: Number of cells behind them, whose tokens are drafts that were not accepted; 0 between steps.
    n_drafted: int = 0
    #: By how many steps drafts have shortened the answer so far; negative if they have lengthened it.
    drafts_gained: float = 0.0
    #: Number of prompt and answer tokens that the job or an earlier attempt has computed so far.
    n_computed: int = 0
    #: Number of tokens that this sequence computed although the job or an earlier attempt had computed them before.
    recomputed: int = 0
    #: Number of prompt tokens that the job did not compute, but reused from an earlier one (prefix reuse).
    cached_tokens: int = 0
    #: Number of tokens that the last step computed for this sequence.
    last_step_tokens: int = 0
    #: End time of the last step that computed tokens of this sequence.
    last_step_end_s: float = -math.inf
    #: Number of the answer's tokens that were known when the sequence got its slot. They are read like a prompt.
    resumed: int = 0
    #: CPU time that the answer's grammar had taken when the last token was sampled.
    grammar_cpu_s: float = 0.0
    #: The part of this time before the sequence got its slot.
    grammar_before_s: float = 0.0
    #: While the sequence is paused: what the backend keeps for it.
    saved: Any = None
    #: The fields of the answer beside its text, while the sequence is paused and when its candidate is complete.
    extra: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def create(cls, job: Prepared, times: JobTimes, index: int = 0) -> "Sequence":
        """Return the sequence of a job's only answer, or of its candidate `index`. It waits for a slot."""
        own = job_of_candidate(job, index)
        return cls(own, times, *text_readers(own), index=index, prompt_number=prompt_number(job, index))

    @property
    def has_computed(self) -> bool:
        return self.slot >= 0 or self.last_step_tokens > 0

    @property
    def scope(self) -> Scope:
        """The scope in which the sequence reuses computed tokens, and in which its own are reused."""
        return Scope(self.job.spec.tenant, self.job.spec.adapter)

    @property
    def owner(self) -> Owner:
        """Identifies the sequence's cells among all others while it is paused."""
        return self.key, self.index

    def go_on(self, words: list[int], piece: Callable[[int], bytes], *, read: bool) -> None:
        """Go on after the words of earlier attempts (`repeat`), which have read the prompt if `read` is true."""
        self.repeat(words, piece)
        if read:
            tokens = sum(not is_end(word) for word in words)
            self.n_computed = self.job.prompt_tokens + max(0, tokens - 1)
        if self.end is not None:
            self.state = SequenceState.ENDED

    def note_step(self, n: int, now_s: float) -> int:
        """Record that a step computed `n` tokens of this sequence and ended at `now_s`.

        Return how many of them were computed already, before a pause or by an earlier attempt.
        """
        before, computed = self.n_past, self.n_computed
        self.n_past = past = before + n
        self.last_step_tokens, self.last_step_end_s = n, now_s
        if past >= computed:
            self.n_computed = past
        return min(past, computed) - before if computed > before else 0

    def accept_draft(self) -> None:
        """Record that the token in the first drafted cell is the one that was sampled."""
        self.n_drafted -= 1
        self.n_past += 1
        self.n_computed = max(self.n_computed, self.n_past)
        self.last_step_tokens += 1

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
        tokens: Tokens = self.job.prompt
        return np.concatenate([tokens, np.array(self.answer, np.int32)]) if self.answer else tokens

    @property
    def cached(self) -> CachedTokens:
        """The tokens whose keys and values are in the slot's KV cells now."""
        prompt = self.job.prompt[: self.n_past]
        answer = self.answer[: max(0, self.n_past - self.job.prompt_tokens)]
        tokens = np.concatenate([prompt, answer]).astype(np.int32) if answer else prompt
        return CachedTokens(self.scope, tokens)

    @property
    def expires_at_s(self) -> float:
        """Time at which the job expires.

        Until the first token of any of its answers is generated, this is the earlier of its deadline and its start
        deadline. After that, it is the deadline.
        """
        spec = self.job.spec
        if spec.start_by_s is None or spec.answer or self.times.first_token_s is not None:
            return spec.deadline_s
        return min(spec.deadline_s, spec.start_by_s)
