"""Reads answers in harmony, the form of gpt-oss (workers/engine/chat/harmony.py), while they are written."""

import re
from collections.abc import Mapping
from enum import Enum

from shared.answer_parts import ARGUMENTS, CALL, END, REASONING, without_marks
from workers.engine.chat.call_reader import JsonObject, partial_length
from workers.engine.chat.harmony import (
    AFTER_CHANNEL,
    AFTER_ROLE,
    ASSISTANT,
    CHANNEL,
    CONSTRAIN,
    END_CALL,
    END_MESSAGE,
    MESSAGE,
    RECIPIENT,
    RETURN,
    START,
)

_TOOL_AFTER_ROLE = re.compile(rf"{AFTER_ROLE}([a-zA-Z0-9_-]{{1,64}})")
_TOOL_AFTER_CHANNEL = re.compile(rf"{AFTER_CHANNEL}([a-zA-Z0-9_-]{{1,64}})")

#: Stands between the texts of two messages that are returned as one.
_BETWEEN = "\n\n"


class _Place(Enum):
    """Where the text is: where a message may have a header or none, in a header, in a body, or after the answer."""

    FIRST, HEADER, BODY, AFTER = range(4)


class _Kind(Enum):
    """The kind of a message."""

    CONTENT, REASONING, CALL, IGNORED = range(4)


#: Where the text is after a mark that ends a message. A message may follow without a header.
_NEXT_PLACES = {
    START: _Place.HEADER,
    CHANNEL: _Place.HEADER,
    END_MESSAGE: _Place.FIRST,
    END_CALL: _Place.FIRST,
    RETURN: _Place.AFTER,
}


class HarmonyReader:
    """Reads one answer. Its results so far depend only on the text so far, not on how that was divided.

    Another worker can therefore continue the answer. `marks` maps each of MARKS to what stands for it in the text.
    `begun` is what the prompt has begun after the role. Without `calls`, a message to a tool is reasoning; without
    `parts`, only content is returned. Reasoning after content or a call is left out, and so is content after a call.
    """

    def __init__(self, marks: Mapping[str, str], *, begun: str = "", calls: bool, parts: bool = True) -> None:
        self._marks = {text: mark for mark, text in marks.items()}
        self._pattern = re.compile("|".join(map(re.escape, self._marks)))
        self._calls, self._parts = calls and parts, parts
        #: Text that is read but not returned, because it may be the beginning of a mark.
        self._held = ""
        self._place, self._kind = _Place.FIRST, _Kind.IGNORED
        #: The header so far: the role with its recipient, and the text after the mark of the channel.
        self._role, self._channel, self._in_channel = ASSISTANT, "", False
        #: The tool that the header has called before the mark of a further channel.
        self._called = ""
        #: White space at the end of the message so far. It is dropped if another message follows.
        self._space = ""
        #: Whether the message has had no text yet, and the kinds of messages that have had some.
        self._is_new, self._said = True, set[_Kind]()
        #: Whether the returned text is inside a part that ends with a mark.
        self._is_open = False
        self._arguments = JsonObject()
        self.feed(begun)

    @property
    def reasons(self) -> bool:
        return self._place is _Place.BODY and self._kind is _Kind.REASONING

    def feed(self, text: str) -> str:
        self._held += text
        returned = ""
        while found := self._pattern.search(self._held):
            before, self._held = self._held[: found.start()], self._held[found.end() :]
            returned += self._read_text(before) + self._read_mark(self._marks[found[0]])
        whole = len(self._held) - max(partial_length(self._held, mark) for mark in self._marks)
        before, self._held = self._held[:whole], self._held[whole:]
        return returned + self._read_text(before)

    def finish(self) -> str:
        """End the answer; return the text that was held back. An unfinished header is left out."""
        returned, self._held = self._read_text(self._held), ""
        if self._place is _Place.FIRST:
            returned += self._begin_body(_Kind.CONTENT) + self._say(self._role.removeprefix(ASSISTANT))
        if self._kind is _Kind.CONTENT or (self._is_open and self._kind is _Kind.REASONING):
            returned += self._space + (END if self._is_open else "")
            self._space, self._is_open = "", False
        return returned

    def _read_text(self, text: str) -> str:
        if self._place is _Place.AFTER:
            return ""
        if self._place is _Place.BODY:
            return self._say(text)
        if self._in_channel:
            self._channel += text
        else:
            self._role += text
        if self._place is not _Place.FIRST:
            return ""
        said = self._role.removeprefix(ASSISTANT)
        if said.lstrip().startswith(RECIPIENT):
            self._place = _Place.HEADER
        elif not RECIPIENT.startswith(said.lstrip()):
            return self._begin_body(_Kind.CONTENT) + self._say(said)
        return ""

    def _read_mark(self, mark: str) -> str:
        if self._place is _Place.AFTER:
            return ""
        if mark in (MESSAGE, CONSTRAIN):
            if self._place is _Place.BODY:
                return ""
            if mark == MESSAGE:
                return self._begin_body(self._kind_of_header())
            # The type of a call's arguments follows, and no recipient: none is recognized behind this character.
            self._place = _Place.HEADER
            return self._read_text("<")
        if mark == CHANNEL and self._place is not _Place.BODY:
            self._called = self._tool()
            self._place, self._channel, self._in_channel = _Place.HEADER, "", True
            return ""
        returned = self._close() if self._place is _Place.BODY else ""
        self._role, self._channel, self._called = "" if mark == START else ASSISTANT, "", ""
        self._in_channel = mark == CHANNEL
        self._place = _NEXT_PLACES[mark]
        return returned

    def _tool(self) -> str:
        role = self._role.removeprefix(ASSISTANT)
        found = _TOOL_AFTER_ROLE.match(role) or _TOOL_AFTER_CHANNEL.match(self._channel)
        return self._called or (found[1] if found else "")

    def _kind_of_header(self) -> _Kind:
        if not self._role.startswith(ASSISTANT):
            return _Kind.IGNORED
        if self._calls and self._tool():
            return _Kind.CALL
        to_others = RECIPIENT in self._role or RECIPIENT in self._channel
        return _Kind.REASONING if to_others or self._channel.lstrip().startswith("analysis") else _Kind.CONTENT

    def _begin_body(self, kind: _Kind) -> str:
        self._place, self._kind, self._is_new, self._space = _Place.BODY, kind, True, ""
        if kind is not _Kind.CALL:
            return ""
        self._said.add(kind)
        self._arguments, self._is_open = JsonObject(), True
        return CALL + self._tool() + ARGUMENTS

    def _say(self, text: str) -> str:
        if self._kind is _Kind.CALL:
            return self._say_arguments(text)
        if not self._is_shown():
            return ""
        text = self._space + text
        whole = text.rstrip()
        self._space = text[len(whole) :]
        if not whole:
            return ""
        before = ""
        if self._kind is _Kind.REASONING and not self._is_open:
            before, self._is_open = REASONING, True
        if self._is_new and self._kind in self._said:
            before += _BETWEEN
        self._is_new = False
        self._said.add(self._kind)
        return before + without_marks(whole)

    def _is_shown(self) -> bool:
        """Return whether the message is part of the answer, which has reasoning, content and calls in this order."""
        if self._kind is _Kind.REASONING:
            return self._parts and self._said <= {_Kind.REASONING}
        return self._kind is _Kind.CONTENT and _Kind.CALL not in self._said

    def _say_arguments(self, text: str) -> str:
        if self._arguments.ended:
            return ""
        returned = without_marks(text[: self._arguments.feed(text)])
        return returned + (self._close() if self._arguments.ended else "")

    def _close(self) -> str:
        """End the message; return the mark that ends its part, if one is open."""
        was_open, self._is_open, self._space = self._is_open, False, ""
        return END if was_open else ""
