"""Splits what a model says to itself between `<think>` and `</think>` off its answer, while it is written."""

from shared.answer_parts import END, REASONING, without_marks
from workers.engine.chat.call_reader import CallReader, PlainReader, partial_length

BEGIN_MARK, END_MARK = "<think>", "</think>"


class ReasoningReader:
    """Reads one answer. Its results so far depend only on the text so far, not on how that was divided.

    `began` says whether the prompt has begun the reasoning, so that the answer continues it. Otherwise the answer has
    reasoning only if it begins with the mark. `rest` reads the text after it.
    """

    def __init__(self, rest: CallReader | PlainReader, *, began: bool) -> None:
        self._rest = rest
        self._held = BEGIN_MARK if began else ""
        self._step = self._read_start
        #: Whether the text is inside the reasoning.
        self.reasons = began

    def feed(self, text: str) -> str:
        self._held += text
        returned = ""
        while True:
            before, step = self._held, self._step
            returned += step() if self._held or step == self._read_rest else ""
            if self._held == before and self._step == step:
                return returned

    def finish(self) -> str:
        held, self._held = self._held, ""
        if self._step == self._read_start and not self.reasons:
            return self._rest.feed(held) + self._rest.finish()
        if self.reasons and self._step != self._read_start:
            return without_marks(held) + END
        return self._rest.finish()

    def _read_start(self) -> str:
        start = self._held.lstrip()
        if start.startswith(BEGIN_MARK):
            self._held, self._step, self.reasons = start[len(BEGIN_MARK) :], self._read_lead, True
            return REASONING
        if not BEGIN_MARK.startswith(start):
            self._step = self._read_rest
        return ""

    def _read_lead(self) -> str:
        self._held = self._held.lstrip()
        if self._held:
            self._step = self._read_reasoning
        return ""

    def _read_reasoning(self) -> str:
        text, at = self._held, self._held.find(END_MARK)
        if at >= 0:
            self._held, self._step, self.reasons = text[at + len(END_MARK) :], self._read_gap, False
            return without_marks(text[:at].rstrip()) + END
        whole = text[: len(text) - partial_length(text, END_MARK)].rstrip()
        self._held = text[len(whole) :]
        return without_marks(whole)

    def _read_gap(self) -> str:
        self._held = self._held.lstrip()
        if self._held:
            self._step = self._read_rest
        return ""

    def _read_rest(self) -> str:
        text, self._held = self._held, ""
        return self._rest.feed(text)
