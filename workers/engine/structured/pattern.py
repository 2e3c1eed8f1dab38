r"""Convert a schema's regular expression to grammar rules that can match a text in only one way.

llama.cpp tracks all ways to match a text at the same time. With an ambiguous expression, the number of ways grows with
each character: `^(a?){1000}$` would block the whole batch for hours. Therefore the expression is first converted to a
deterministic automaton, which has only one way to match a text.

The parser supports the subset of ECMA-262 that JSON Schema recommends, without lookaround: characters, classes,
`\d \w \s`, groups, `|`, `* + ? {m,n}`. The expression must begin with ^ and end with $, because a grammar cannot skip
text before or after the match.
"""

import re
from collections.abc import Callable, Iterator

from workers.engine.structured.automaton import (
    AutomatonBuilder,
    Chars,
    Node,
    Ranges,
    State,
    alt,
    cat,
    difference,
    intersection,
    rep,
    union,
)

#: Maximum number of characters that an expression may have.
MAX_CHARS = 1000

#: Code point of a character that must be escaped in a JSON string → the escape sequence as it is written in a grammar.
#: All other control characters are forbidden in answers.
_ESCAPED = {0x22: r"\\\"", 0x5C: r"\\\\", 0x08: r"\\b", 0x09: r"\\t", 0x0A: r"\\n", 0x0C: r"\\f", 0x0D: r"\\r"}
#: All characters that a string in an answer may contain.
_ALLOWED: Ranges = ((0x08, 0x0A), (0x0C, 0x0D), (0x20, 0xD7FF), (0xE000, 0x10FFFF))
_UNESCAPED = difference(_ALLOWED, union((code, code) for code in _ESCAPED))
_CLASSES: dict[str, Ranges] = {
    "d": ((0x30, 0x39),),
    "w": ((0x30, 0x39), (0x41, 0x5A), (0x5F, 0x5F), (0x61, 0x7A)),
    "s": ((0x09, 0x0D), (0x20, 0x20), (0xA0, 0xA0), (0x2028, 0x2029)),
}
#: Characters that are spaces for some validators but not for others. None of `\s`, `\S`, `\D` and `\W` matches them.
_AMBIGUOUS_SPACES: Ranges = (
    (0x85, 0x85),
    (0x1680, 0x1680),
    (0x2000, 0x200A),
    (0x202F, 0x202F),
    (0x205F, 0x205F),
    (0x3000, 0x3000),
    (0xFEFF, 0xFEFF),
)
_DOT = difference(_ALLOWED, ((0x0A, 0x0A), (0x0D, 0x0D), (0x2028, 0x2029)))
_CONTROLS = {"t": 0x09, "n": 0x0A, "v": 0x0B, "f": 0x0C, "r": 0x0D}
_QUANTIFIER = re.compile(r"[*+?]|\{(\d{1,4})(?:(,)(\d{0,4}))?\}")
_SHORT_QUANTIFIERS: dict[str, tuple[int, int | None]] = {"*": (0, None), "+": (1, None), "?": (0, 1)}
_HEX = re.compile(r"x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})")


def rules_of(pattern: str, rule_name: Callable[[int], str], builder: AutomatonBuilder) -> list[str]:
    """Return one grammar rule for each state of the pattern's automaton, the start state first.

    The caller must add the rule of state i to the grammar under the name `rule_name(i)`, and must put the opening quote
    of the JSON string before the start state's rule. The closing quote is part of the rules of accepting states. Raises
    ValueError if the pattern cannot be used.
    """
    return [_rule(state, rule_name) for state in states_of(pattern, builder)]


def states_of(pattern: str, builder: AutomatonBuilder) -> list[State]:
    """Return the states of the pattern's automaton, the start state first.

    Raises ValueError if the pattern is unsupported, exceeds a limit, or matches no text.
    """
    if len(pattern) > MAX_CHARS:
        raise ValueError(f"a pattern of {len(pattern)} characters is over the limit of {MAX_CHARS}")
    try:
        states = builder.build(_Parser(pattern).parse())
    except ValueError as fault:
        raise ValueError(f"{fault}, in the pattern {pattern!r}") from None
    if not (states[0].accepting or states[0].transitions):
        raise ValueError(f"no text matches the pattern {pattern!r}")
    return states


def _rule(state: State, rule_name: Callable[[int], str]) -> str:
    choices = ['"\\"" space'] if state.accepting else []
    for target, ranges in state.transitions.items():
        if plain := intersection(ranges, _UNESCAPED):
            chars = "".join(_code(low) if low == high else f"{_code(low)}-{_code(high)}" for low, high in plain)
            choices.append(f"[{chars}] {rule_name(target)}")
        choices += [
            f'"{text}" {rule_name(target)}' for code, text in _ESCAPED.items() if intersection(ranges, ((code, code),))
        ]
    # A state without choices still needs a rule, even though no other rule refers to it.
    return " | ".join(choices) or '""'


def _code(code: int) -> str:
    return chr(code) if code < 0x80 and chr(code).isalnum() else f"\\U{code:08X}"


def _is_single(ranges: Ranges) -> bool:
    return len(ranges) == 1 and ranges[0][0] == ranges[0][1]


class _Parser:
    """A recursive-descent parser for one regular expression."""

    def __init__(self, text: str) -> None:
        self._text, self._at = text, 0

    def parse(self) -> Node:
        """Return the expression as a node. Raises ValueError if it is invalid or unsupported."""
        node = alt(self._anchored() for _ in self._alternatives())
        if self._at < len(self._text):
            raise ValueError("a ) has no matching (")
        return node

    def _alternatives(self) -> Iterator[None]:
        yield
        while self._accept("|"):
            yield

    def _anchored(self) -> Node:
        if not self._accept("^"):
            raise ValueError("each alternative must begin with ^")
        node = self._sequence()
        if not self._accept("$"):
            raise ValueError("each alternative must end with $")
        return node

    def _sequence(self) -> Node:
        parts: list[Node] = []
        while self._at < len(self._text) and self._text[self._at] not in "|)$":
            parts.append(self._quantified(self._atom()))
        return cat(parts)

    def _quantified(self, node: Node) -> Node:
        found = _QUANTIFIER.match(self._text, self._at)
        if found is None:
            return node
        self._at = found.end()
        low, high = _SHORT_QUANTIFIERS.get(found[0], (int(found[1] or 0), None))
        if found[1]:
            high = low if not found[2] else int(found[3]) if found[3] else None
        if high is not None and high < low:
            raise ValueError(f"the bounds of {found[0]} run backwards")
        # Skip the ? of a lazy quantifier: with or without the ?, a quantifier matches the same texts.
        self._accept("?")
        if self._at < len(self._text) and self._text[self._at] in "*+?":
            raise ValueError(f"{self._text[self._at]} cannot follow another quantifier")
        return rep(node, low, high)

    def _atom(self) -> Node:
        char = self._text[self._at]
        self._at += 1
        if char == "(":
            return self._group()
        if char == "[":
            return Chars(intersection(self._set(), _ALLOWED))
        if char == "\\":
            return Chars(intersection(self._escape(), _ALLOWED))
        if char == ".":
            return Chars(_DOT)
        if char in "*+?{}]^":
            raise ValueError(f"{char} at character {self._at} must be escaped as \\{char}")
        return Chars(intersection(((ord(char), ord(char)),), _ALLOWED))

    def _group(self) -> Node:
        if self._accept("?") and not self._accept(":"):
            raise ValueError("groups that begin with (? are not supported, except for (?:")
        node = alt([self._sequence() for _ in self._alternatives()])
        if not self._accept(")"):
            raise ValueError("a ( is not closed")
        return node

    def _set(self) -> Ranges:
        negated = self._accept("^")
        ranges: list[tuple[int, int]] = []
        while not self._accept("]"):
            low = self._set_member()
            if not (_is_single(low) and self._text[self._at : self._at + 2] not in {"-]", ""} and self._accept("-")):
                ranges += low
                continue
            high = self._set_member()
            if not _is_single(high) or high[0][0] < low[0][0]:
                raise ValueError("a range in [ ] has no end or runs backwards")
            ranges.append((low[0][0], high[0][1]))
        return difference(_ALLOWED, union(ranges)) if negated else union(ranges)

    def _set_member(self) -> Ranges:
        if self._at >= len(self._text):
            raise ValueError("a [ is not closed")
        char = self._text[self._at]
        self._at += 1
        return self._escape() if char == "\\" else ((ord(char), ord(char)),)

    def _escape(self) -> Ranges:
        """Parse an escape sequence after its backslash, and return the characters that it matches."""
        char = self._text[self._at : self._at + 1]
        if found := _HEX.match(self._text, self._at):
            self._at = found.end()
            code = int(found[1] or found[2], 16)
            return ((code, code),)
        self._at += 1
        if char in _CONTROLS:
            return ((_CONTROLS[char], _CONTROLS[char]),)
        if char.lower() in _CLASSES:
            ranges = _CLASSES[char.lower()]
            return ranges if char.islower() else difference(_ALLOWED, union([*ranges, *_AMBIGUOUS_SPACES]))
        if not char or (char.isascii() and char.isalnum()):
            raise ValueError(f"\\{char} is not supported")
        return ((ord(char), ord(char)),)

    def _accept(self, char: str) -> bool:
        if self._text.startswith(char, self._at):
            self._at += 1
            return True
        return False
