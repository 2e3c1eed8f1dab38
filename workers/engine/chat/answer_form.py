"""How an answer with parts is read: which control tokens are visible in its text, and the reader of the text."""

from collections.abc import Mapping
from dataclasses import dataclass

from shared.answer_parts import without_marks
from workers.engine.chat.call_reader import CallReader
from workers.engine.chat.reasoning import ReasoningReader
from workers.engine.chat.tool_formats import ToolFormat


class PlainReader:
    """Reads an answer without parts. Marks that the model writes itself are replaced."""

    reasons = False

    def feed(self, text: str) -> str:
        """Add text of the model; return the new text of the answer."""
        return without_marks(text)

    def finish(self) -> str:
        """End the answer; return the text that was held back, which is none."""
        return ""


@dataclass(frozen=True)
class AnswerForm:
    """How the parts of one answer are read. `names` are the control tokens whose names are part of the text.

    `form` is that of the calls, None if the answer has none. With `reasons`, the answer may begin with reasoning, which
    the prompt has begun if `began` is true.
    """

    form: ToolFormat | None
    names: Mapping[int, bytes]
    reasons: bool = False
    began: bool = False

    def piece(self, token: int, piece: bytes) -> bytes:
        """Return what a token adds to the text; `piece` is what it adds to a text without parts."""
        return piece or self.names.get(token, b"")

    def start(self) -> CallReader | ReasoningReader | PlainReader:
        """Return a reader for a new answer."""
        rest = PlainReader() if self.form is None else CallReader(self.form)
        return ReasoningReader(rest, began=self.began) if self.reasons else rest
