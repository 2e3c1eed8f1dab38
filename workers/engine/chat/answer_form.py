"""How an answer with parts is read: which control tokens are visible in its text, and the reader of the text."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from workers.engine.chat.call_reader import CallReader, PlainReader
from workers.engine.chat.harmony import CONSTRAIN, END_CALL, END_MESSAGE, MARKS, MESSAGE, RECIPIENT, STAND_INS
from workers.engine.chat.harmony_reader import HarmonyReader
from workers.engine.chat.reasoning import ReasoningReader
from workers.engine.chat.tool_formats import ToolFormat
from workers.engine.detokenizer import Detokenizer


@dataclass(frozen=True)
class AnswerForm:
    """How the parts of one answer are read. `names` are the control tokens whose names are part of the text.

    `form` is that of the calls, None if the answer has none; `texts` are the parameters of each tool that are written
    as texts in this form. With `reasons`, the answer may begin with reasoning, which the prompt has begun if `began` is
    true.
    """

    form: ToolFormat | None
    names: Mapping[int, bytes]
    reasons: bool = False
    began: bool = False
    texts: Mapping[str, Collection[str]] = field(default_factory=dict)

    def begin(self, characters: Detokenizer) -> None:
        """Say where in a new answer stop strings count: everywhere."""

    def text(self, characters: Detokenizer, token: int, piece: bytes) -> str:
        """Return the reader's text for a token; `piece` is what it adds to a text without parts."""
        return characters.feed(piece or self.names.get(token, b""))

    @property
    def marks_between_texts(self) -> Collection[int]:
        """The tokens that are not part of a text: none, because names of control tokens are read as text."""
        return ()

    def start(self) -> CallReader | ReasoningReader | PlainReader:
        rest = PlainReader() if self.form is None else CallReader(self.form, self.texts)
        return ReasoningReader(rest, began=self.began) if self.reasons else rest


@dataclass(frozen=True)
class ChannelForm:
    """How an answer in harmony is read (workers/engine/chat/harmony.py).

    `form` is that of the calls, None if the answer has none. `names` are the names of the control tokens that are
    marks; empty if the marks are texts. `begun` is what the prompt has begun after the role, in the reader's text.
    Without `parts`, only the content is read.
    """

    form: ToolFormat | None
    names: Mapping[int, bytes]
    begun: str = ""
    parts: bool = True
    #: Reasoning is a message of its own, which needs no marks around a text.
    reasons: bool = False

    @property
    def began(self) -> bool:
        """Whether the prompt has begun the text of a message."""
        return self.marks[MESSAGE] in self.begun

    def begin(self, characters: Detokenizer) -> None:
        """Say where in a new answer stop strings count: in messages but not in headers, which no client sees.

        Where the marks are texts, they count everywhere.
        """
        if self.names and not self.begun:
            characters.expect(searched=True, header=RECIPIENT)
        elif self.names:
            characters.expect(searched=self.began)

    def text(self, characters: Detokenizer, token: int, piece: bytes) -> str:
        """Return the reader's text for a token; `piece` is what it adds to a text without parts."""
        name = self.names.get(token)
        if name is None:
            return characters.feed(piece)
        mark = name.decode()
        was_searched = characters.is_searched
        text = characters.add_mark(STAND_INS[mark])
        if mark in (END_MESSAGE, END_CALL):
            # The next message may have no header, or begin with that of a call.
            characters.expect(searched=True, header=RECIPIENT)
        else:
            # The reader ignores the mark of a type inside a message.
            characters.expect(searched=mark == MESSAGE or (mark == CONSTRAIN and was_searched))
        return text

    @property
    def marks_between_texts(self) -> Collection[int]:
        return self.names.keys()

    @property
    def marks(self) -> Mapping[str, str]:
        """Each mark → the text that stands for it in the reader's text."""
        return STAND_INS if self.names else {mark: mark for mark in MARKS}

    def start(self) -> HarmonyReader:
        return HarmonyReader(self.marks, begun=self.begun, calls=self.form is not None, parts=self.parts)


#: How the parts of an answer are read.
Form = AnswerForm | ChannelForm
