"""The parts of an answer's text: what the model says, how it reasons, and its calls of tools; pure functions.

Each model writes calls of tools in a form of its own. The worker converts every form to this one, in which Unicode's
noncharacters mark where a part begins and ends:

    CALL name ARGUMENTS arguments END, and REASONING text END

If the request asks for it, an upstream's own names are kept: SOURCE and the upstream's id of a call follow the name,
and SOURCE follows REASONING if the upstream's field is `reasoning` and not `reasoning_content`.

All other text is content. The text of the answer therefore goes through the store, and is continued by another worker,
like any other text. Only requests that may call tools or show reasoning are answered in this form.
"""

import re
from dataclasses import dataclass, field
from typing import Literal

#: No text in use contains these characters: Unicode reserves them for marks inside a program. shared/candidates.py has
#: two more.
CALL, ARGUMENTS, REASONING, END, SOURCE = "\ufdd0", "\ufdd1", "\ufdd2", "\ufdd3", "\ufdd6"
_MARKS = re.compile(f"([{CALL}{ARGUMENTS}{REASONING}{END}{SOURCE}])")

Kind = Literal["content", "reasoning", "call", "arguments"]


@dataclass(frozen=True)
class Delta:
    """A new piece of an answer.

    For the kind `call`, `text` is the name of the tool. `index` is the number of the call, from 0, that a `call` begins
    or that `arguments` extend. `source` is the upstream's id of a call, or its name of the field with the reasoning; ""
    if it is not kept.
    """

    kind: Kind
    text: str
    index: int = 0
    source: str = ""


@dataclass
class Call:
    """A call of a tool. The arguments are JSON, unless the answer was cut. `id` is the upstream's, if it is kept."""

    name: str
    arguments: str = ""
    id: str = ""


@dataclass
class AnswerParts:
    """The parts of a whole answer."""

    content: str = ""
    reasoning: str = ""
    calls: list[Call] = field(default_factory=list)
    #: The upstream's name of the field with the reasoning, if it is kept.
    reasoning_field: str = ""


def without_marks(text: str) -> str:
    """Return the text with a replacement character for each mark, which an answer's own text may not contain."""
    return _MARKS.sub("\ufffd", text)


def first_mark(text: str, start: int) -> int | None:
    """Return the place of the first mark at or after `start`; None if the text has none there."""
    found = _MARKS.search(text, start)
    return None if found is None else found.start()


def segments(text: str) -> list[str]:
    """Divide the text into its marks and the texts between them."""
    return [segment for segment in _MARKS.split(text) if segment]


class PartsReader:
    """Divides a text that arrives in pieces. The pieces may be cut anywhere, even inside a tool's name."""

    def __init__(self) -> None:
        self._inside = ""
        #: The name of the call that has begun, and its source, or that of the reasoning.
        self._name = self._source = ""
        self._n_calls = 0

    def is_content(self, text: str) -> bool:
        """Return whether the next text is content as a whole; False also if that takes longer to find out."""
        return not self._inside and text.isascii()

    def feed(self, text: str) -> list[Delta]:
        deltas = []
        for part in segments(text):
            if part in {CALL, REASONING, END}:
                self._inside, self._name, self._source = "" if part == END else part, "", ""
            elif part == ARGUMENTS:
                deltas.append(Delta("call", self._name, self._n_calls, self._source))
                self._inside, self._n_calls = ARGUMENTS, self._n_calls + 1
            elif part == SOURCE and self._inside == REASONING:
                self._source = "reasoning"
            elif part == SOURCE:
                self._inside = SOURCE
            elif self._inside == CALL:
                self._name += part
            elif self._inside == SOURCE:
                self._source += part
            else:
                deltas.append(self._delta(part))
        return deltas

    def _delta(self, text: str) -> Delta:
        if self._inside == ARGUMENTS:
            return Delta("arguments", text, self._n_calls - 1)
        if self._inside == REASONING:
            return Delta("reasoning", text, source=self._source)
        return Delta("content", text)


def read_parts(text: str) -> AnswerParts:
    parts = AnswerParts()
    for delta in PartsReader().feed(text):
        if delta.kind == "call":
            parts.calls.append(Call(delta.text, id=delta.source))
        elif delta.kind == "arguments":
            parts.calls[delta.index].arguments += delta.text
        elif delta.kind == "reasoning":
            parts.reasoning += delta.text
            parts.reasoning_field = delta.source or parts.reasoning_field
        else:
            parts.content += delta.text
    return parts


@dataclass
class Part:
    """One part of an answer, where it stands. `text` is the name of the tool if the part is a call."""

    kind: Literal["content", "reasoning", "call"]
    text: str
    arguments: str = ""


def ordered_parts(text: str) -> list[Part]:
    """Return the parts of a whole answer in their order. Adjacent pieces of one kind are one part."""
    parts: list[Part] = []
    for delta in PartsReader().feed(text):
        if delta.kind == "arguments":
            parts[-1].arguments += delta.text
        elif delta.kind == "call":
            parts.append(Part("call", delta.text))
        elif parts and parts[-1].kind == delta.kind:
            parts[-1].text += delta.text
        else:
            parts.append(Part(delta.kind, delta.text))
    return parts
