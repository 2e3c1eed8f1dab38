"""A job inside the engine: the sequence of its answer, or of each of its candidates, and its events."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from shared.candidates import begin_mark, end_mark, without_candidate_marks
from shared.jobs.job import ClaimRef, Usage
from shared.jobs.outcomes import FinishReason
from workers.engine.answer.candidates import mean_logprob
from workers.engine.answer.times import JobTimes
from workers.engine.answer.words import CandidateEnd, words_by_candidate
from workers.engine.backend import Prepared
from workers.engine.events import Text
from workers.engine.sequence import Sequence, SequenceState


@dataclass(slots=True, eq=False)
class EngineJob:
    """One job. Only the engine's thread uses it.

    It has reserved one slot, in which its candidates take turns. Further candidates may borrow slots.
    """

    job: Prepared
    times: JobTimes
    #: The sequences of all answers, by the index of the candidate.
    sequences: list[Sequence]
    #: Number of words that events have carried, in any attempt.
    n_reported: int = 0
    #: The candidate to which the newest text of an event belongs; -1 before the first.
    _shown: int = field(default=-1)

    @classmethod
    def create(cls, job: Prepared, now_s: float) -> "EngineJob":
        times = JobTimes(now_s)
        return cls(job, times, [Sequence.create(job, times, index) for index in range(job.candidates)])

    def repeat(self, piece: Callable[[int], bytes]) -> None:
        """Go on after the words that earlier attempts have told. `piece` returns the bytes of a token."""
        earlier = self.job.spec.answer
        each = words_by_candidate(earlier) if self.has_candidates else [list(earlier)]
        pairs = list(zip(self.sequences, each, strict=False))
        read = {sequence.prompt_number for sequence, words in pairs if words}
        for sequence, words in pairs:
            sequence.go_on(words, piece, read=sequence.prompt_number in read)
        self.n_reported = len(earlier)

    @property
    def key(self) -> ClaimRef:
        return self.job.spec.key

    @property
    def has_candidates(self) -> bool:
        return len(self.sequences) > 1

    @property
    def in_slots(self) -> list[Sequence]:
        return [sequence for sequence in self.sequences if sequence.slot >= 0]

    @property
    def idle(self) -> list[Sequence]:
        """The sequences that have no slot and are not complete: first those that had one, in order."""
        found = [each for each in self.sequences if each.slot < 0 and each.state is not SequenceState.ENDED]
        return sorted(found, key=lambda sequence: sequence.state is not SequenceState.PAUSED)

    @property
    def completed_by(self) -> FinishReason | None:
        """Why the job is complete: because of its length if a candidate was cut at its length. None if it is not."""
        if not self.has_candidates:
            return self.sequences[0].completed_by()
        reasons = {None if sequence.end is None else sequence.end.reason for sequence in self.sequences}
        if None in reasons:
            return None
        return FinishReason.LENGTH if FinishReason.LENGTH in reasons else FinishReason.STOP

    def with_prompt_of(self, sequence: Sequence) -> list[Sequence]:
        number = sequence.prompt_number
        return [each for each in self.sequences if each.prompt_number == number and each is not sequence]

    def ends_within(self, tokens: int) -> bool:
        """Return whether the job is complete after at most `tokens` further tokens of each sequence."""
        left = (each for each in self.sequences if each.end is None)
        return all(each.slot >= 0 and each.tokens_left <= tokens for each in left)

    def end_candidate(self, sequence: Sequence, reason: FinishReason, extra: dict[str, Any]) -> str:
        """Record that a candidate is complete, and return the rest of its text. `extra` are its answer's fields."""
        sequence.extra = extra
        return sequence.end_candidate(CandidateEnd(reason, mean_logprob(extra)))

    def text_event(self, sequence: Sequence, text: str) -> Text:
        """Return an event for new text of an answer. It carries the words that no earlier event carried."""
        words = sequence.take_unreported()
        self.n_reported += len(words)
        if self.has_candidates:
            text = self._marked(sequence, text, is_end=bool(words) and sequence.end is not None)
        return Text(self.key, text, self.n_reported, self.grammar_cpu_s, words)

    def _marked(self, sequence: Sequence, text: str, *, is_end: bool) -> str:
        end = end_mark(sequence.end.reason) if is_end and sequence.end is not None else ""
        if not text and not end:
            return ""
        begin = "" if self._shown == sequence.index else begin_mark(sequence.index)
        self._shown = sequence.index
        return begin + without_candidate_marks(text) + end

    @property
    def text(self) -> str:
        """The answer's text so far, in the form of shared/candidates.py if the job has several."""
        if not self.has_candidates:
            return self.sequences[0].text
        texts = ((each, without_candidate_marks(each.text)) for each in self.sequences)
        return "".join(
            begin_mark(each.index) + text + ("" if each.end is None else end_mark(each.end.reason))
            for each, text in texts
            if text or each.end is not None
        )

    def fields(self) -> dict[str, Any]:
        """Return the answer's fields other than its text: those of its only sequence, or of each candidate."""
        reasoning_tokens = sum(sequence.reasoning_tokens for sequence in self.sequences)
        reasoning = {"reasoning_tokens": reasoning_tokens} if reasoning_tokens else {}
        if self.has_candidates:
            return {"candidates": self._fields_of_candidates()} | reasoning
        stopped_by = self.sequences[0].detokenizer.stopped_by
        return self.sequences[0].extra | reasoning | ({"stop_sequence": stopped_by} if stopped_by else {})

    def _fields_of_candidates(self) -> list[dict[str, Any]]:
        shows_logprobs, fields = self.job.sampling.logprobs is not None, []
        for sequence in self.sequences:
            mean = None if sequence.end is None else sequence.end.mean_logprob
            own = sequence.extra if shows_logprobs else {}
            fields.append(({} if mean is None else {"mean_logprob": mean}) | own)
        while fields and not fields[-1]:
            fields.pop()
        return fields

    @property
    def grammar_cpu_s(self) -> float:
        return sum(sequence.grammar_cpu_s for sequence in self.sequences)

    @property
    def completion_tokens(self) -> int:
        return sum(len(sequence.answer) for sequence in self.sequences)

    def tokens_computed_after(self, time_s: float) -> int:
        return sum(sequence.tokens_computed_after(time_s) for sequence in self.sequences)

    @property
    def stage(self) -> str:
        """The stage, as a value of `Stage`: `prefill` until the first token is generated, then `decode`."""
        return "prefill" if self.times.first_token_s is None else "decode"

    @property
    def expires_at_s(self) -> float:
        return self.sequences[0].expires_at_s

    def usage(self, now_s: float) -> Usage:
        """Return the job's token counts, and its durations up to `now_s`, which is when it ends.

        `prefill_ms` and `decode_ms` do not include pauses, because the engine's rates are computed from them.
        """
        self.times.resume(now_s)
        prefill_ms, decode_ms, ttft_ms = self.times.durations_ms(now_s)
        read: dict[int, int] = {}
        for sequence in self.sequences:
            own = min(sequence.job.prompt_tokens, max(sequence.n_past, sequence.n_computed))
            read[sequence.prompt_number] = max(own, read.get(sequence.prompt_number, 0))
        return Usage(
            prompt_tokens=self.job.prompt_tokens,
            cached_tokens=sum(sequence.cached_tokens for sequence in self.sequences),
            completion_tokens=self.completion_tokens,
            prefill_ms=prefill_ms,
            decode_ms=decode_ms,
            ttft_ms=ttft_ms,
            again_tokens=sum(sequence.recomputed for sequence in self.sequences),
            unread_tokens=max(0, self.job.prompt_tokens - sum(read.values())),
        )
