"""Converts what a model writes to the parts of an answer (shared/answer_parts.py), while it is written."""

import json
from collections.abc import Collection, Mapping
from types import MappingProxyType

from shared.answer_parts import ARGUMENTS, CALL, END, without_marks
from workers.engine.chat.tool_formats import Parameters, ToolFormat


class CallReader:
    """Reads one answer. Its results so far depend only on the text so far, not on how that was divided.

    Another worker can therefore continue the answer. Where arguments are written one by one, `texts` maps the name of
    each tool to those of its parameters whose values are texts and not JSON.
    """

    #: Whether the text is inside the model's reasoning (workers/engine/chat/reasoning.py).
    reasons = False

    def __init__(self, form: ToolFormat, texts: Mapping[str, Collection[str]] = MappingProxyType({})) -> None:
        self._form, self._texts = form, texts
        #: Text that is read but not returned, because it may be the beginning of a mark.
        self._held = ""
        self._step = self._read_content
        self._begun = False
        self._n_calls = 0
        self._tool = ""
        self._arguments: JsonObject | ParameterReader = JsonObject()

    def feed(self, text: str) -> str:
        self._held += text
        returned = ""
        while True:
            before, step = self._held, self._step
            returned += step()
            if self._held == before and self._step == step:
                return returned

    def finish(self) -> str:
        """End the answer; return the text that was held back. An unfinished name is left out."""
        rest, self._held = self._held, ""
        if self._step == self._read_arguments:
            return without_marks(self._arguments.finish(rest))
        return without_marks(rest) if self._step == self._read_content else ""

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
        found = (self._form.next_opening if self._n_calls else self._form.opening).match(self._held)
        if found is None:
            return ""
        self._n_calls += 1
        self._held, self._step = self._held[found.end() :], self._read_arguments
        name, parameters = found["name"], self._form.parameters
        if parameters is None:
            self._arguments = JsonObject()
        else:
            self._arguments = ParameterReader(parameters, self._form.after, self._texts.get(name, ()))
        return CALL + name + ARGUMENTS

    def _read_arguments(self) -> str:
        read, self._held = self._arguments.read(self._held)
        if not self._arguments.ended:
            return without_marks(read)
        self._step = self._read_name if self._form.again else self._read_nothing
        return without_marks(read) + END

    def _read_nothing(self) -> str:
        return ""


class PlainReader:
    """Reads an answer without parts. Marks that the model writes itself are replaced."""

    reasons = False

    def feed(self, text: str) -> str:
        return without_marks(text)

    def finish(self) -> str:
        """End the answer; return the text that was held back, which is always empty."""
        return ""


class JsonObject:
    """Finds the end of a JSON object that arrives in pieces, by its braces outside of strings."""

    def __init__(self) -> None:
        self._depth = 0
        self._in_string = self._escaped = False
        self.ended = False

    def finish(self, held: str) -> str:
        """Return the rest of the unfinished object when the answer ends; no text of it is held back."""
        return held

    def read(self, text: str) -> tuple[str, str]:
        length = self.feed(text)
        return text[:length], text[length:]

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


class ParameterReader:
    """Reads arguments that are written one by one, and returns the JSON of an object. `after` follows the last one.

    The parameters in `texts` have texts as values. A value in JSON is returned when it is complete.
    """

    def __init__(self, form: Parameters, after: str, texts: Collection[str]) -> None:
        self._form, self._after, self._texts = form, after, texts
        self._n_read = 0
        self._is_text: bool | None = None
        self.ended = False

    def read(self, held: str) -> tuple[str, str]:
        """Read on in the text that is held back; return the new part of the object, and the text to hold back."""
        returned = ""
        while not self.ended:
            before = held
            new, held = self._read_key(held) if self._is_text is None else self._read_value(held)
            returned += new
            if held == before:
                break
        return returned, held

    def finish(self, held: str) -> str:
        if self._is_text is None:
            return ""
        return _escaped(held) if self._is_text else held

    def _read_key(self, held: str) -> tuple[str, str]:
        if held.startswith(self._after):
            self.ended = True
            return "}" if self._n_read else "{}", held
        found = self._form.opening.match(held)
        if found is None:
            return "", held
        key, self._n_read = found["key"], self._n_read + 1
        self._is_text = key in self._texts
        lead = ("{" if self._n_read == 1 else ", ") + json.dumps(key, ensure_ascii=False) + ": "
        return lead + '"' * self._is_text, held[found.end() :]

    def _read_value(self, held: str) -> tuple[str, str]:
        after = self._form.after
        at = held.find(after)
        if self._is_text:
            if at < 0:
                kept = len(held) - partial_length(held, after)
                return _escaped(held[:kept]), held[kept:]
            self._is_text = None
            return _escaped(held[:at]) + '"', held[at + len(after) :]
        while at >= 0 and not _is_json(held[:at]):
            at = held.find(after, at + 1)
        if at < 0:
            return "", held
        self._is_text = None
        return held[:at], held[at + len(after) :]


def _escaped(text: str) -> str:
    """Return the text as it stands inside a string of JSON."""
    return json.dumps(without_marks(text), ensure_ascii=False)[1:-1]


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True


def partial_length(text: str, mark: str) -> int:
    """Return the length of the longest end of the text with which the mark may begin."""
    return next((n for n in range(min(len(mark) - 1, len(text)), 0, -1) if text.endswith(mark[:n])), 0)
