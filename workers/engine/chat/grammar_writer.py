"""Writes texts as terms of a grammar in llguidance's Lark format, in which control tokens are rules of their own."""

import json
import re
from collections.abc import Mapping

#: Any text.
ANY = "/(?s:.*)/"


class GrammarWriter:
    """Writes texts as terms of a grammar. Names of control tokens in them become rules for these tokens."""

    def __init__(self, control_tokens: Mapping[str, int]) -> None:
        self._tokens = control_tokens
        self._pattern = _any_of(control_tokens)
        self._used: dict[str, int] = {}

    @property
    def marks(self) -> tuple[tuple[str, int], ...]:
        """The name of each rule that stands for a control token, and the token."""
        return tuple((f"mark_{i}", token) for i, token in enumerate(self._used.values()))

    def has_mark(self, text: str) -> bool:
        return self._pattern is not None and self._pattern.search(text) is not None

    def terms(self, text: str) -> str:
        """Return the terms that match exactly this text; "" for an empty one."""
        parts = [text] if self._pattern is None else self._pattern.split(text)
        return " ".join(self._term(part) for part in parts if part)

    def _term(self, part: str) -> str:
        if part not in self._tokens:
            return json.dumps(part, ensure_ascii=False)
        self._used.setdefault(part, self._tokens[part])
        return f"mark_{list(self._used).index(part)}"


def _any_of(names: Mapping[str, int]) -> re.Pattern[str] | None:
    longest_first = sorted(names, key=len, reverse=True)
    return re.compile(f"({'|'.join(map(re.escape, longest_first))})") if names else None
