"""What an answer that may call tools needs: the constraint, the visible control tokens and the reader of its text."""

from collections.abc import Mapping
from dataclasses import dataclass

from workers.engine.chat.call_reader import CallReader
from workers.engine.chat.tool_formats import ToolFormat


@dataclass(frozen=True)
class CallForm:
    """How the calls in one answer are read. `names` are the control tokens whose names are part of the text."""

    form: ToolFormat
    names: Mapping[int, bytes]

    def piece(self, token: int, piece: bytes) -> bytes:
        """Return what a token adds to the text; `piece` is what it adds to a text without calls."""
        return piece or self.names.get(token, b"")

    def start(self) -> CallReader:
        """Return a reader for a new answer."""
        return CallReader(self.form)
