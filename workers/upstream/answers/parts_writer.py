"""Writes an upstream's message in the form of shared/answer_parts.py while it arrives; pure."""

from shared.answer_parts import ARGUMENTS, CALL, END, REASONING, without_marks


class OrderInvalid(Exception):
    """The upstream went back to a call of a tool after the next part of the answer had begun."""


class WholeCharacters:
    """Joins the halves of characters: a server that escapes its JSON may put two surrogates into two chunks.

    `held` is the half whose other half is awaited.
    """

    def __init__(self) -> None:
        self.held = ""

    def add(self, piece: str) -> str:
        """Return the new text. Half of a pair at its end is held back until the other half arrives.

        A half alone becomes U+FFFD.
        """
        text = self.held + piece
        self.held = text[-1] if text and "\ud800" <= text[-1] <= "\udbff" else ""
        text = text[: len(text) - len(self.held)]
        if text.isascii():
            return text
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


class PartsWriter:
    """Each method returns the text to be added to the answer. A part ends where a part of another kind begins."""

    def __init__(self) -> None:
        #: The number of calls so far.
        self.n_calls = 0
        #: The part that is open: `content`, `reasoning`, or the `name` or `arguments` of a call.
        self._open = "content"
        #: The index of the last call, as the upstream counts them, and those of all calls.
        self._index, self._indexes = -1, set[int]()
        self._characters = WholeCharacters()

    def content(self, piece: str) -> str:
        """Add a piece of what the model says."""
        before = self._begin("content") if piece and self._open != "content" else ""
        return before + self._text(piece)

    def reasoning(self, piece: str) -> str:
        """Add a piece of what the model reasons."""
        before = self._begin("reasoning") + REASONING if piece and self._open != "reasoning" else ""
        return before + self._text(piece)

    def call(self, index: int, name: str, arguments: str) -> str:
        """Add a piece of the call with this index. A name that comes after arguments is ignored. Raises OrderInvalid.

        Servers send calls one after another. A blank that belongs to a call which has ended is ignored.
        """
        before = ""
        if index != self._index or self._open not in {"name", "arguments"}:
            if index in self._indexes:
                if (name + arguments).strip():
                    raise OrderInvalid("the upstream went back to an earlier call of a tool")
                return ""
            before = self._begin("name") + CALL
            self._index, self.n_calls = index, self.n_calls + 1
            self._indexes.add(index)
        if self._open == "name":
            before += self._text(name)
            if arguments:
                before += ARGUMENTS
                self._open, self._characters = "arguments", WholeCharacters()
        return before + self._text(arguments)

    @property
    def ending(self) -> str:
        """What has to follow if the open part ends here. Half of a character that stays alone becomes U+FFFD."""
        half = "\ufffd" if self._characters.held else ""
        return half + {"content": "", "name": ARGUMENTS + END}.get(self._open, END)

    def _begin(self, part: str) -> str:
        """Begin another part, and return the end of the one before."""
        before = self.ending
        self._open, self._characters = part, WholeCharacters()
        return before

    def _text(self, piece: str) -> str:
        """Return a piece of the open part, without the marks of our own answers."""
        return without_marks(self._characters.add(piece))
