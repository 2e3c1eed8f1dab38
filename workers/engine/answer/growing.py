"""One answer while it is generated: its tokens, its text, and which of them events have carried."""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from shared.jobs.job import ClaimRef
from shared.jobs.outcomes import FinishReason
from workers.engine.answer.lookup import PromptLookup
from workers.engine.answer.times import JobTimes
from workers.engine.answer.words import CandidateEnd, end_word, is_end, read_end, token_word
from workers.engine.backend import END, Prepared
from workers.engine.detokenizer import Detokenizer


@dataclass(slots=True, eq=False)
class GrowingAnswer:
    """The answer of a job, or one of its candidates. Only the engine's thread uses it."""

    job: Prepared
    times: JobTimes
    detokenizer: Detokenizer
    #: Reads the parts in the detokenizer's text; None if this text is the answer.
    reader: Any = None
    #: The index of the candidate; 0 if the job has only one answer.
    index: int = 0
    #: Number of the answer's tokens that belong to its reasoning.
    reasoning_tokens: int = 0
    #: The pieces of the answer's text, as far as they were returned, if it has parts.
    _texts: list[str] = field(default_factory=list)
    #: The answer's tokens. The model has not computed the last one yet: it is the input of the next step.
    answer: list[int] = field(default_factory=list)
    #: How many of the newest tokens the text does not have yet, because they are read during the next step.
    unread: int = 0
    #: How the candidate ended; None if it is not complete, or the job's only answer.
    end: CandidateEnd | None = None
    #: Number of the answer's words that Text events have carried, in any attempt: its tokens, and its end.
    n_reported: int = 0
    #: The tokens and the candidate's end that an earlier attempt sampled, in the order in which they are computed
    #: again.
    known: deque[int] = field(default_factory=deque)
    #: Drafts the answer's next tokens; None if they were never to be drafted.
    lookup: PromptLookup | None = None

    @property
    def key(self) -> ClaimRef:
        return self.job.spec.key

    @property
    def text(self) -> str:
        """The answer's text so far, in the form of shared/answer_parts.py if it has parts."""
        return self.detokenizer.text if self.reader is None else "".join(self._texts)

    @property
    def unreported(self) -> int:
        """Number of the newest words that no event has carried; negative while an earlier attempt's are repeated."""
        return len(self.answer) + (self.end is not None) - self.n_reported

    def take_unreported(self) -> tuple[int, ...]:
        words = self.answer[self.n_reported :] if self.n_reported < len(self.answer) else []
        if self.index:
            words = [token_word(self.index, token) for token in words]
        if self.end is not None and self.unreported > 0:
            words.append(end_word(self.index, self.end))
        self.n_reported += len(words)
        return tuple(words)

    @property
    def tokens_left(self) -> int:
        return self.job.max_tokens - len(self.answer)

    @property
    def last_token(self) -> int:
        return self.answer[-1]

    def add(self, token: int) -> None:
        self.answer.append(token)

    def read(self, token: int, piece: Callable[[int], bytes]) -> str:
        """Add a token to the text; return the new text of the answer. `piece` returns the bytes of a token."""
        if self.reader is None:
            return self.detokenizer.feed(piece(token))
        text = self._keep(self.reader.feed(self.job.form.text(self.detokenizer, token, piece(token))))
        self.reasoning_tokens += self.reader.reasons
        return text

    def read_unread(self, piece: Callable[[int], bytes]) -> str:
        """Add the tokens to the text that were not read yet; return the new text of the answer."""
        if not self.unread:
            return ""
        tokens, self.unread = self.answer[-self.unread :], 0
        return "".join([self.read(token, piece) for token in tokens])

    def finish_text(self) -> str:
        rest = self.detokenizer.finish()
        return rest if self.reader is None else self._keep(self.reader.feed(rest) + self.reader.finish())

    def _keep(self, text: str) -> str:
        if text:
            self._texts.append(text)
        return text

    def completed_by(self, *, ended: bool = False) -> FinishReason | None:
        """Return why the answer is complete; None if it is not. `ended` says whether the model has ended it."""
        if ended or self.detokenizer.stopped:
            return FinishReason.STOP
        return FinishReason.LENGTH if len(self.answer) >= self.job.max_tokens else None

    def end_candidate(self, end: CandidateEnd) -> str:
        """Record that the candidate is complete. Return the text that was held back, unless an earlier attempt told it.

        Such an attempt has told the end too, which is the same again, although other batches round differently.
        """
        told = [word for word in self.known if is_end(word)]
        self.known.clear()
        self.end = read_end(told[0]) if told else end
        rest = self.finish_text()
        return "" if told else rest

    def next_known(self) -> int | None:
        """Return the next token that an earlier attempt sampled, or END; None if all were returned."""
        if not self.known:
            return None
        return END if is_end(self.known[0]) else self.known.popleft()

    def repeat(self, words: list[int], piece: Callable[[int], bytes]) -> None:
        """Go on after the words of earlier attempts, whose text events have told.

        A candidate that is complete is not computed again, unless the client asked for its log probabilities. `piece`
        returns the bytes of a token.
        """
        self.n_reported = len(words)
        is_complete = bool(words) and is_end(words[-1])
        if self.job.keeps_logprobs and not (is_complete and self.job.sampling.logprobs is None):
            # The log probabilities of the earlier attempt's tokens follow from their logits.
            self.known = deque(words)
        else:
            self._repeat(words, piece)

    def keep_known(self, piece: Callable[[int], bytes]) -> None:
        """Add the tokens of an earlier attempt that were not computed again, because the answer ends before."""
        words, self.known = list(self.known), deque()
        self._repeat(words, piece)

    def _repeat(self, words: list[int], piece: Callable[[int], bytes]) -> None:
        for word in words:
            if is_end(word):
                self.end_candidate(read_end(word))
            else:
                self.answer.append(word)
                self.read(word, piece)


def text_readers(job: Prepared) -> tuple[Detokenizer, Any]:
    """Return the detokenizer of a new answer, and the reader of its parts; None if it has none."""
    sampling = job.sampling
    detokenizer = Detokenizer(sampling.stop, strip_space=job.strip_space, min_tokens=sampling.min_tokens)
    if job.form is None:
        return detokenizer, None
    job.form.begin(detokenizer)
    return detokenizer, job.form.start()
