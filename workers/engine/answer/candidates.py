"""How far a job with several candidates has come: which one is generated, and what the complete ones are."""

from dataclasses import dataclass, field, replace
from typing import Any

from shared.candidates import begin_mark, end_mark, without_candidate_marks
from shared.jobs.outcomes import FinishReason
from workers.engine.answer.words import LEAST_MEAN, CandidateEnd, end_word
from workers.engine.backend import Prepared


@dataclass(slots=True)
class Candidates:
    """The candidates of one job, which are generated one after another in the same slot."""

    n: int
    #: Whether the client asked for the log probabilities of the tokens.
    shows_logprobs: bool
    #: The index of the candidate that is generated; `n` when all are complete.
    index: int = 0
    #: The tokens of all candidates so far, with a word for the end of each complete one.
    words: list[int] = field(default_factory=list)
    #: Number of tokens of the candidates before the one that is generated.
    tokens_before: int = 0
    ends: list[CandidateEnd] = field(default_factory=list)
    #: The other fields of the complete candidates' answers.
    extras: list[dict[str, Any]] = field(default_factory=list)
    _marked: bool = False

    @classmethod
    def of(cls, job: Prepared) -> "Candidates | None":
        """Return the candidates of a job; None if it has only one."""
        return cls(job.candidates, job.sampling.logprobs is not None) if job.candidates > 1 else None

    @property
    def done(self) -> bool:
        """Whether all candidates are complete."""
        return self.index >= self.n

    @property
    def reason(self) -> FinishReason:
        """Why the job ended: because of its length if a candidate was cut at its length."""
        was_cut = any(end.reason == FinishReason.LENGTH for end in self.ends)
        return FinishReason.LENGTH if was_cut else FinishReason.STOP

    def marked(self, text: str) -> str:
        """Return new text of the present candidate with the mark that begins it, if it has none yet."""
        mark = "" if self._marked or not text else begin_mark(self.index)
        self._marked = self._marked or bool(mark)
        return mark + without_candidate_marks(text)

    def end(self, end: CandidateEnd, extra: dict[str, Any]) -> str:
        """Record that the present candidate is complete. Return the marks that tell so."""
        mark = ("" if self._marked else begin_mark(self.index)) + end_mark(end.reason)
        self.words.append(end_word(end))
        self.ends.append(end)
        self.extras.append(extra if self.shows_logprobs else {})
        self.index, self._marked = self.index + 1, False
        return mark

    def fields(self, unfinished: dict[str, Any]) -> dict[str, Any]:
        """Return the answer's fields other than its text. `unfinished` are those of a candidate that is incomplete."""
        means = [{} if end.mean_logprob is None else {"mean_logprob": end.mean_logprob} for end in self.ends]
        of_each = [mean | extra for mean, extra in zip(means, self.extras, strict=True)]
        of_each += [] if self.done or not self.shows_logprobs else [unfinished]
        return {"candidates": of_each}


def job_of_candidate(before: Prepared) -> Prepared:
    """Return the job whose answer is the next candidate; its seed is one more than that of the candidate before.

    A job without a seed has a random one for each candidate.
    """
    seed = before.sampling.seed
    return before if seed is None else replace(before, sampling=replace(before.sampling, seed=seed + 1))


def mean_logprob(extra: dict[str, Any]) -> float | None:
    """Return the mean log probability of the tokens in an answer's field `logprobs`; None if there are none."""
    entries = extra.get("logprobs")
    return max(LEAST_MEAN, round(sum(entry[1] for entry in entries) / len(entries), 6)) if entries else None
