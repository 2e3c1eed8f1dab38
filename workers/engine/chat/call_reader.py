"""Converts what a model writes to the parts of an answer (shared/answer_parts.py), while it is written."""

from shared.answer_parts import ARGUMENTS, CALL, END, without_marks
from workers.engine.chat.tool_formats import ToolFormat


class CallReader:
    """Reads one answer. What it has returned so far depends only on the text so far, not on how that was divided.

    Another worker can therefore go on with the answer.
    """

    #: Whether the text is inside the model's reasoning (workers/engine/chat/reasoning.py).
    reasons = False

    def __init__(self, form: ToolFormat) -> None:
        self._form = form
        #: Text that is read but not returned, because it may be the beginning of a mark.
        self._held = ""
        self._step = self._read_content
        self._begun = False
        self._n_calls = 0
        self._arguments = JsonObject()

    def feed(self, text: str) -> str:
        """Add text of the model; return the new text of the answer."""
        self._held += text
        returned = ""
        while True:
            before, step = self._held, self._step
            returned += step()
            if self._held == before and self._step == step:
                return returned

    def finish(self) -> str:
        """End the answer; return the text that was held back. An unfinished name of a tool is left out."""
        rest = without_marks(self._held) if self._step == self._read_content else ""
        self._held = ""
        return rest

    def _read_content(self) -> str:
        begin, text = self._form.begin, self._held
        if self._form.only_first:
            return self._read_first(begin, text)
        at = text.find(begin)
        if at >= 0:
            # The white space between the text and the call belongs to neither.
            self._held, self._step = text[at + len(begin) :], self._read_name
            return without_marks(text[:at].rstrip())
        keep = partial_length(text, begin)
        kept = len(text) - len(text[: len(text) - keep].rstrip())
        self._held = text[len(text) - kept :]
        return without_marks(text[: len(text) - kept])

    def _read_first(self, begin: str, text: str) -> str:
        start = text.lstrip()
        if not self._begun and start.startswith(begin):
            self._held, self._step = start[len(begin) :], self._read_name
            return ""
        if not self._begun and begin.startswith(start):
            return ""
        self._begun, self._held = True, ""
        return without_marks(text)

    def _read_name(self) -> str:
        before = self._form.again if self._n_calls else self._form.before
        name, found, rest = self._held.partition(self._form.between)
        if not found or not name.startswith(before):
            return ""
        self._n_calls += 1
        self._held, self._step, self._arguments = rest, self._read_arguments, JsonObject()
        return CALL + without_marks(name[len(before) :]) + ARGUMENTS

    def _read_arguments(self) -> str:
        length = self._arguments.feed(self._held)
        read, self._held = self._held[:length], self._held[length:]
        if not self._arguments.ended:
            return without_marks(read)
        self._step = self._read_after
        return without_marks(read) + END

    def _read_after(self) -> str:
        after = self._form.after
        if self._form.again and self._held.startswith(after + self._form.again):
            self._held, self._step = self._held[len(after) :], self._read_name
        return ""


class JsonObject:
    """Finds the end of a JSON object that arrives in pieces, by its braces outside of strings."""

    def __init__(self) -> None:
        self._depth = 0
        self._in_string = self._escaped = False
        self.ended = False

    def feed(self, text: str) -> int:
        """Read on; return how many of the characters belong to the object."""
        for at, character in enumerate(text):
            if self._escaped:
                self._escaped = False
            elif self._in_string:
                self._escaped = character == "\\"
                self._in_string = character != '"'
            elif character == '"':
                self._in_string = True
            elif character in "{[":
                self._depth += 1
            elif character in "}]":
                self._depth -= 1
                if self._depth <= 0:
                    self.ended = True
                    return at + 1
        return len(text)


def partial_length(text: str, mark: str) -> int:
    """Return the length of the longest end of the text with which the mark may begin."""
    return next((n for n in range(min(len(mark) - 1, len(text)), 0, -1) if text.endswith(mark[:n])), 0)
