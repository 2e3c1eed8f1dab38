"""Builds a job's answer, of one or several choices, from the upstream's chunks or its whole response; pure."""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from shared.candidates import begin_mark, end_mark, without_candidate_marks
from shared.jobs.outcomes import FinishReason
from workers.upstream.choice import AnswerChoice, keep_rest, with_whole_characters
from workers.upstream.parts_writer import PartsWriter
from workers.upstream.pieces import AnswerInvalid, ChoicesMissing, read_index

#: The most bytes of an answer, with its tool calls, that are kept.
MAX_ANSWER_BYTES = 8 << 20
#: The fields of a response that the client gets from Penstock, or that are read here.
_READ = frozenset(
    {"choices", "created", "degraded", "error", "id", "model", "object", "queue", "system_fingerprint", "usage"}
)


class Counts(NamedTuple):
    """The upstream's own counts of tokens; None for what it did not count."""

    prompt: int | None = None
    cached: int = 0
    completion: int | None = None
    #: How many of the completion's tokens are reasoning.
    reasoning: int = 0


def read_counts(usage: Any) -> Counts:
    """Return the counts in the `usage` of a chunk or a response. Other values than numbers of tokens are left out.

    So is a prompt of 0 tokens: servers that have not counted yet send it.
    """
    if not isinstance(usage, dict):
        return Counts()
    prompt, completion = _count(usage.get("prompt_tokens")) or None, _count(usage.get("completion_tokens"))
    cached = _detail(usage, "prompt_tokens_details", "cached_tokens")
    reasoning = _detail(usage, "completion_tokens_details", "reasoning_tokens")
    return Counts(prompt, min(prompt or 0, cached), completion, min(completion or 0, reasoning))


class Answer:
    """One answer so far. With several choices, its text has the form of shared/candidates.py."""

    #: The most bytes of a response that is not streamed.
    max_bytes = MAX_ANSWER_BYTES

    def __init__(
        self,
        kind: str,
        max_tokens: int,
        *,
        n: int = 1,
        prompts: int = 1,
        has_parts: bool = False,
        keeps_sources: bool = False,
        keeps_rest: bool = False,
    ) -> None:
        """Create an empty answer of `n` choices, which are divided equally among the prompts, in order.

        `kind` is `chat` or `completion`.
        `max_tokens` is the length of a choice that was asked for. With `has_parts`, reasoning and calls of tools become
        parts of the text, with `keeps_sources` under the upstream's own names. `keeps_rest` is whether the fields that
        are not read here are kept for the client.
        """
        self._max_tokens, self._keeps_rest, self._n_each = max_tokens, keeps_rest, n // prompts
        writers = (PartsWriter(keeps_sources=keeps_sources) if has_parts else None for _ in range(n))
        self._choices = [AnswerChoice(kind, writer, keeps_rest) for writer in writers]
        self.counts = Counts()
        #: Whether the upstream ignores the length: after it, there was a chunk, which is part of the answer, and
        #: another, and no other choice is awaited.
        self.is_too_long = False
        #: How many tokens events have reported. The number grows with each new text, because followers take a text
        #: with an earlier number for a repeat. The ends of choices count too.
        self.reported = 0
        #: How many chunks with a part had arrived when the upstream last counted the tokens of all choices.
        self._counted_chunks = 0
        #: The counts of single choices, by the index of the choice; and the choices whose tokens are counted.
        self._counts_each: dict[int, Counts] = {}
        self._counted: set[int] = set()
        #: Whether counts are those of all choices so far.
        self._counts_all = n == 1
        self._rest: dict[str, Any] = {}
        self._size = 0
        #: The choice to which the newest text belongs; -1 before the first.
        self._shown = -1

    @property
    def text(self) -> str:
        if len(self._choices) == 1:
            return self._choices[0].text
        texts = ((index, each, without_candidate_marks(each.text)) for index, each in enumerate(self._choices))
        return "".join(
            begin_mark(index) + text + (end_mark(each.finish_reason) if each.finish_reason else "")
            for index, each, text in texts
            if text or each.finish_reason
        )

    @property
    def finish_reason(self) -> str:
        """Why the answer is complete: because of its length if a choice was cut at its length. "" if it is not."""
        if len(self._choices) == 1:
            return self._choices[0].finish_reason
        reasons = [each.finish_reason for each in self._choices]
        if "" in reasons:
            return ""
        return FinishReason.LENGTH.value if FinishReason.LENGTH in reasons else reasons[0]

    @property
    def chunks(self) -> int:
        """Number of chunks that had a part of the answer. Most servers send one for each token."""
        return self._choices[0].chunks if len(self._choices) == 1 else sum(each.chunks for each in self._choices)

    @property
    def completion_tokens(self) -> int:
        """The number of tokens so far: the upstream's last count, unless more chunks than that have a part by now.

        Counts of several choices may come in ways that `_of_all` takes for others; they are at least the chunks.
        """
        counted = self.counts.completion or 0
        if len(self._choices) == 1:
            chunks = self._choices[0].chunks
            return counted if chunks == self._counted_chunks else max(counted, chunks)
        if self._counts_each:
            counted += sum(each.chunks for at, each in enumerate(self._choices) if at not in self._counted)
        return max(counted, self.chunks)

    @property
    def has_begun(self) -> bool:
        return any(each.has_begun for each in self._choices)

    @property
    def has_role(self) -> bool:
        """Whether the upstream has begun to answer: some send a role first, and hold back what may be a call."""
        return any(each.has_role for each in self._choices)

    def add_chunk(self, chunk: Any) -> str | None:
        """Add one chunk of a stream. Return its new text, which may be "", or None if it has no part of the answer.

        Raises AnswerInvalid.
        """
        if chunk is None:
            # llama-server sends it before the answers to several prompts.
            return None
        texts: list[str | None] = []
        for index, fields in self._choices_in(chunk):
            choice = self._choices[index]
            has_ended, is_full = bool(choice.finish_reason), self._tokens_of(choice) > self._max_tokens
            text = choice.add_chunk(fields, is_full=is_full)
            texts.append(self._marked(index, text, is_end=bool(choice.finish_reason) and not has_ended))
        self._keep_rest(chunk)
        self._count(chunk.get("usage"))
        added = [text for text in texts if text is not None]
        return self._note_added("".join(added) if added else None)

    def add_text(self, index: int, field: str, text: str) -> str | None:
        """Add a chunk that has only this text, of one choice: content, or reasoning in the field of this name.

        Return and raise the same as `add_chunk`.
        """
        choice = self._choices[index]
        has_ended, is_full = choice.finish_reason != "", self._tokens_of(choice) > self._max_tokens
        new = choice.add_text(field, text, is_full=is_full)
        if len(self._choices) > 1:
            new = self._marked(index, new, is_end=bool(choice.finish_reason) and not has_ended)
        self._check_size()
        return self._note_added(new)

    def _note_added(self, new: str | None) -> str | None:
        """Note that a chunk was added whose new text is given, and return it."""
        number, tokens = len(self._choices), self.completion_tokens
        if number == 1 and not self._choices[0].finish_reason:
            self.is_too_long |= tokens > self._max_tokens + 1
        elif self.finish_reason:
            self.is_too_long |= any(each.runs_on for each in self._choices)
        else:
            self.is_too_long |= tokens > number * (self._max_tokens + 1)
        if new:
            ended = sum(bool(each.finish_reason) for each in self._choices) if number > 1 else 0
            self.reported = max(self.reported + 1, tokens + ended)
        return new

    def add_whole(self, response: Any) -> str:
        choices = list(self._choices_in(response))
        if not choices:
            raise AnswerInvalid("the upstream's response has no choice")
        for index, fields in choices:
            self._choices[index].add_whole(fields)
        self._keep_rest(response)
        self._count(response.get("usage"))
        self._check_number()
        self.reported = self.completion_tokens + len(self._choices)
        return self.text

    def end(self, reason: str) -> None:
        """Note that nothing more comes, and why if the upstream has not said it. Raises AnswerInvalid for no answer."""
        if all(each.is_missing for each in self._choices):
            raise AnswerInvalid("the upstream ended the stream without an answer")
        self._check_number()
        for each in self._choices:
            each.end(reason)

    def extra(self) -> dict[str, Any]:
        """Return what the answer has beside its text, as the job's result stores it; empty if it has nothing else."""
        each, rest = [choice.extra() for choice in self._choices], {"response": self._rest} if self._rest else {}
        extra: dict[str, Any] = {}
        if len(each) == 1:
            rest = each[0] | rest
        elif any(each):
            extra["candidates"] = [{"upstream": with_whole_characters(own)} if own else {} for own in each]
        if rest:
            extra["upstream"] = with_whole_characters(rest)
        return extra | ({"reasoning_tokens": self.counts.reasoning} if self.counts.reasoning else {})

    def _choices_in(self, value: Any) -> Iterator[tuple[int, Mapping[str, Any]]]:
        """Yield the choices in a chunk or a response, with their indexes. Those that were not asked for are left out.

        Choices without an index of their own are numbered by their places.
        """
        if not isinstance(value, dict):
            raise AnswerInvalid("the upstream sent JSON that is not an object")
        choices = value.get("choices")
        if choices is None:
            # Some servers send usage, or a sign of life, in an object of its own.
            return
        if not isinstance(choices, list):
            raise AnswerInvalid("the upstream sent choices that are not a list")
        given = [(read_index(one.get("index"), "a choice"), one) for one in choices if isinstance(one, dict)]
        indexes = {index for index, _ in given}
        has_own = None not in indexes and len(indexes) == len(given)
        indexed = [(index if has_own and index is not None else place, one) for place, (index, one) in enumerate(given)]
        asked = [(index, one) for index, one in indexed if index < len(self._choices)]
        if choices and not asked:
            raise AnswerInvalid("the upstream sent choices without one that was asked for")
        yield from asked

    def _tokens_of(self, choice: AnswerChoice) -> int:
        """Return the number of a choice's tokens: the upstream counts those of all choices together."""
        return self.completion_tokens if len(self._choices) == 1 else choice.chunks

    def _marked(self, index: int, text: str | None, *, is_end: bool) -> str | None:
        if len(self._choices) == 1 or not (text or is_end):
            return text
        begin = "" if self._shown == index else begin_mark(index)
        self._shown = index
        end = end_mark(self._choices[index].finish_reason) if is_end else ""
        return begin + without_candidate_marks(text or "") + end

    def _count(self, usage: Any) -> None:
        """Take over the upstream's counts. Once an answer has begun, a count of 0 tokens is ignored."""
        if usage is None:
            return
        counts = read_counts(usage)
        if counts.prompt is None and not counts.completion and (counts.completion is None or self.has_begun):
            return
        if (counts.prompt or counts.completion) and not self._counts_all:
            counts = self._of_all(counts)
        if counts.completion:
            self._counted_chunks = self.chunks
        elif self.has_begun:
            counts = counts._replace(completion=self.counts.completion)
        if counts.prompt is not None or counts.completion is not None:
            self.counts = counts if counts.prompt is not None else counts._replace(prompt=self.counts.prompt)

    def _of_all(self, counts: Counts) -> Counts:
        """Return the counts of all choices that have been counted, with those of the choices that have just ended.

        llama-server counts each choice when it ends, with its whole prompt, although it computes a prompt only once.
        Other servers count all choices together: at the end, or so far in each chunk, also while no choice has ended.
        """
        ended = [at for at, each in enumerate(self._choices) if each.finish_reason and at not in self._counted]
        self._counts_all = not ended or len(ended) == len(self._choices)
        if self._counts_all:
            self._counts_each.clear()
            return counts
        self._counts_each[ended[0]] = counts
        self._counted.update(ended)
        by_prompt: dict[int, Counts] = {}
        for index, each in self._counts_each.items():
            prompt = index // self._n_each
            by_prompt[prompt] = max(by_prompt.get(prompt, each), each, key=lambda one: one.prompt or 0)
        return Counts(
            sum(each.prompt or 0 for each in by_prompt.values()) or None,
            sum(each.cached for each in by_prompt.values()),
            sum(each.completion or 0 for each in self._counts_each.values()),
            sum(each.reasoning for each in self._counts_each.values()),
        )

    def _check_number(self) -> None:
        """Raise ChoicesMissing if the upstream has answered with fewer choices than were asked for."""
        missing = sum(each.is_missing for each in self._choices)
        if missing:
            raise ChoicesMissing(len(self._choices) - missing, len(self._choices))

    def _keep_rest(self, value: Mapping[str, Any]) -> None:
        """Keep the other fields of a chunk or a response, within the bound of the whole answer."""
        if self._keeps_rest:
            self._size += keep_rest(self._rest, value, _READ, joins_texts=False)
        self._check_size()

    def _check_size(self) -> None:
        sizes = self._choices[0].size if len(self._choices) == 1 else sum(each.size for each in self._choices)
        if self._size + sizes > MAX_ANSWER_BYTES:
            raise AnswerInvalid(f"the upstream's answer is longer than {MAX_ANSWER_BYTES} bytes")


def _count(value: Any) -> int | None:
    # bool is a subclass of int, but true is no number of tokens.
    return value if type(value) is int and 0 <= value < 1 << 40 else None


def _detail(usage: dict[str, Any], group: str, name: str) -> int:
    details = usage.get(group)
    return (_count(details.get(name)) or 0) if isinstance(details, dict) else 0
