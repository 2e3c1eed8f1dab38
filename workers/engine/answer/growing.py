"""The answer of a job while it is generated: its tokens, its text, and which of them events have carried."""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from shared.jobs.outcomes import FinishReason
from workers.engine.answer.candidates import Candidates, job_of_candidate, mean_logprob
from workers.engine.answer.words import CandidateEnd, is_end, read_end
from workers.engine.backend import END, Prepared
from workers.engine.detokenizer import Detokenizer


@dataclass(slots=True, eq=False)
class GrowingAnswer:
    """The answer of one job. Only the engine's thread uses it.

    If the job has several candidates, `job`, `answer`, `detokenizer` and `reader` are those of the present one. The
    others are in `candidates`.
    """

    job: Prepared
    submitted_s: float
    detokenizer: Detokenizer
    #: Reads the parts in the detokenizer's text; None if this text is the answer.
    reader: Any = None
    #: None if the job has only one answer.
    candidates: Candidates | None = None
    #: Number of the answer's tokens that belong to its reasoning.
    reasoning_tokens: int = 0
    #: The pieces of the answer's text, as far as they were returned, if it has parts or candidates.
    _texts: list[str] = field(default_factory=list)
    #: The answer's tokens. The model has not computed the last one yet: it is the input of the next step.
    answer: list[int] = field(default_factory=list)
    #: Number of the answer's tokens, and ends of candidates, that Text events have carried, in any attempt.
    n_reported: int = 0
    #: What an earlier attempt sampled and is computed one by one again, in order: tokens, and ends of candidates.
    known: deque[int] = field(default_factory=deque)

    @property
    def key(self) -> str:
        """The job's key, `<id>:<claim token>`."""
        return self.job.spec.key

    @property
    def text(self) -> str:
        """The answer's text so far, in the forms of shared/answer_parts.py and shared/candidates.py if it has these."""
        is_plain = self.reader is None and self.candidates is None
        return self.detokenizer.text if is_plain else "".join(self._texts)

    @property
    def words(self) -> list[int]:
        """What events tell of the answer: its tokens and, after each complete candidate, a word for its end."""
        return self.answer if self.candidates is None else self.candidates.words

    @property
    def unreported(self) -> int:
        """Number of the newest words that no event has carried."""
        return len(self.words) - self.n_reported

    @property
    def tokens_left(self) -> int:
        """The maximum number of tokens that the answer, with all candidates to come, may still get."""
        left = self.job.max_tokens - len(self.answer)
        more = 0 if self.candidates is None else self.candidates.n - 1 - self.candidates.index
        return left + max(0, more) * self.job.max_tokens

    @property
    def last_token(self) -> int:
        """The answer's last token, which is the input of the next step."""
        return self.answer[-1]

    @property
    def completion_tokens(self) -> int:
        """Number of tokens of the answer so far."""
        return len(self.answer) + (0 if self.candidates is None else self.candidates.tokens_before)

    def add(self, token: int) -> None:
        """Add a token to the answer."""
        self.answer.append(token)
        if self.candidates is not None:
            self.candidates.words.append(token)

    def read(self, token: int, piece: Callable[[int], bytes]) -> str:
        """Add a token to the text; return the new text of the answer. `piece` returns the bytes of a token."""
        if self.reader is None:
            return self._keep(self.detokenizer.feed(piece(token)))
        text = self._keep(self.reader.feed(self.detokenizer.feed(self.job.form.piece(token, piece(token)))))
        self.reasoning_tokens += self.reader.reasons
        return text

    def finish_text(self) -> str:
        """End the answer's text. Return the text that was held back."""
        if self.candidates is not None and self.candidates.done:
            return ""
        rest = self.detokenizer.finish()
        return self._keep(rest if self.reader is None else self.reader.feed(rest) + self.reader.finish())

    def _keep(self, text: str) -> str:
        if self.candidates is not None:
            text = self.candidates.marked(text)
        elif self.reader is None:
            return text
        if text:
            self._texts.append(text)
        return text

    def completed_by(self, *, ended: bool = False) -> FinishReason | None:
        """Return why the answer, or the present candidate, is complete; None if it is not.

        `ended` says whether the model has ended it.
        """
        if self.candidates is not None and self.candidates.done:
            return self.candidates.reason
        if ended or self.detokenizer.stopped:
            return FinishReason.STOP
        return FinishReason.LENGTH if len(self.answer) >= self.job.max_tokens else None

    def end_candidate(self, reason: FinishReason, extra: dict[str, Any]) -> str:
        """End the present candidate; `extra` are the other fields of its answer.

        Return the text that was held back, and the marks that tell the end, unless an earlier attempt has told them.
        """
        # The end is all that can be left of this candidate, unless another program has changed the ids.
        told = [word for word in self._leave_known() if is_end(word)]
        end = read_end(told[0]) if told else CandidateEnd(reason, mean_logprob(extra))
        text = self._end_candidate(end, extra)
        return "" if told else text

    def _leave_known(self) -> list[int]:
        """Remove and return what an earlier attempt knew of the present candidate."""
        n = min(self.known_here + 1, len(self.known))
        return [self.known.popleft() for _ in range(n)]

    def _end_candidate(self, end: CandidateEnd, extra: dict[str, Any]) -> str:
        if self.candidates is None:
            raise ValueError(f"job {self.key} has only one answer")
        rest = self.finish_text()
        marks = self.candidates.end(end, extra)
        self._texts.append(marks)
        return rest + marks

    def restart(self) -> None:
        """Begin the next candidate, if there is one."""
        if self.candidates is None or self.candidates.done:
            return
        self.candidates.tokens_before += len(self.answer)
        self.job = job_of_candidate(self.job)
        self.detokenizer, self.reader, self.answer = *text_readers(self.job), []

    def next_known(self) -> int | None:
        """Return the next token that an earlier attempt sampled, or END; None if there is none."""
        if not self.known:
            return None
        return END if is_end(self.known[0]) else self.known.popleft()

    @property
    def known_here(self) -> int:
        """Number of tokens of the present candidate that an earlier attempt sampled and are not computed yet."""
        return next((n for n, word in enumerate(self.known) if is_end(word)), len(self.known))

    @property
    def knows_an_end(self) -> bool:
        """Whether an earlier attempt told the end of a candidate that is not computed again yet."""
        return any(map(is_end, self.known))

    def repeat(self, piece: Callable[[int], bytes]) -> None:
        """Read the text of the answer that earlier attempts generated. `piece` returns the bytes of a token.

        Candidates that are complete are not computed again, unless the client asked for their log probabilities.
        """
        for token in self.answer:
            self.read(token, piece)
        if self.candidates is not None and not self.candidates.shows_logprobs:
            while self.knows_an_end:
                self._repeat_word(self.known.popleft(), piece)

    def keep_known(self, piece: Callable[[int], bytes]) -> None:
        """Add the tokens of an earlier attempt that were not computed again, because the answer ends before."""
        while self.known:
            self._repeat_word(self.known.popleft(), piece)

    def _repeat_word(self, word: int, piece: Callable[[int], bytes]) -> None:
        if is_end(word) and self.candidates is not None:
            self._end_candidate(read_end(word), {})
            self.restart()
        else:
            self.add(word)
            self.read(word, piece)


def text_readers(job: Prepared) -> tuple[Detokenizer, Any]:
    """Return the detokenizer of a new answer, and the reader of its parts; None if it has none."""
    sampling = job.sampling
    detokenizer = Detokenizer(sampling.stop, strip_space=job.strip_space, min_tokens=sampling.min_tokens)
    return detokenizer, None if job.form is None else job.form.start()
