r"""A schema's regular expression as rules of a grammar, of which one at most fits at any character.

llama.cpp follows every way to read a text at once, and where ways part and meet again their number grows with each
character: `^(a?){1000}$` would hold up the whole batch for hours. So the expression is made an automaton first.

Understood is what JSON Schema recommends of ECMA-262 and what needs no looking around: characters, classes, `\d \w \s`,
groups, `|`, `* + ? {m,n}`. It has to stand between ^ and $: a grammar does not pass over what is before or behind.
"""

import re
from collections.abc import Callable, Iterator

from workers.engine.structured.automaton import Chars, Node, Ranges, Search, State, alt, both, cat, rep, union, without

#: Longest expression.
MAX_CHARS = 1000

#: What a JSON string spells with a backslash, as a grammar's literal; other control characters are in no answer.
_SPELLED = {0x22: r"\\\"", 0x5C: r"\\\\", 0x08: r"\\b", 0x09: r"\\t", 0x0A: r"\\n", 0x0C: r"\\f", 0x0D: r"\\r"}
_EVERY: Ranges = ((0x08, 0x0A), (0x0C, 0x0D), (0x20, 0xD7FF), (0xE000, 0x10FFFF))
_PLAIN = without(_EVERY, union((code, code) for code in _SPELLED))
_CLASSES: dict[str, Ranges] = {
    "d": ((0x30, 0x39),),
    "w": ((0x30, 0x39), (0x41, 0x5A), (0x5F, 0x5F), (0x61, 0x7A)),
    "s": ((0x09, 0x0D), (0x20, 0x20), (0xA0, 0xA0), (0x2028, 0x2029)),
}
#: Spaces to some who check an answer and not to others: neither `\s` nor `\S` means them.
_HARDLY_SPACES: Ranges = (
    (0x85, 0x85),
    (0x1680, 0x1680),
    (0x2000, 0x200A),
    (0x202F, 0x202F),
    (0x205F, 0x205F),
    (0x3000, 0x3000),
    (0xFEFF, 0xFEFF),
)
_DOT = without(_EVERY, ((0x0A, 0x0A), (0x0D, 0x0D), (0x2028, 0x2029)))
_CONTROLS = {"t": 0x09, "n": 0x0A, "v": 0x0B, "f": 0x0C, "r": 0x0D}
_COUNT = re.compile(r"[*+?]|\{(\d{1,4})(?:(,)(\d{0,4}))?\}")
_SIGNS: dict[str, tuple[int, int | None]] = {"*": (0, None), "+": (1, None), "?": (0, 1)}
_HEX = re.compile(r"x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})")


def rules_of(pattern: str, name: Callable[[int], str], search: Search) -> list[str]:
    """The rule of each state, the first one first; state i's is to be called name(i).

    The first begins behind the opening quote of a JSON string, and the last ones close it. Raises ValueError.
    """
    return [_rule(state, name) for state in states_of(pattern, search)]


def states_of(pattern: str, search: Search) -> list[State]:
    """The automaton of a pattern. Raises ValueError for what is not understood, comes to too much, or fits no text."""
    if len(pattern) > MAX_CHARS:
        raise ValueError(f"a pattern of {len(pattern)} characters is over {MAX_CHARS}")
    try:
        states = search.states_of(_Reader(pattern).whole())
    except ValueError as fault:
        raise ValueError(f"{fault}: the pattern {pattern!r}") from None
    if not (states[0].ends or states[0].moves):
        raise ValueError(f"no text fits the pattern {pattern!r}")
    return states


def _rule(state: State, name: Callable[[int], str]) -> str:
    ways = ['"\\"" space'] if state.ends else []
    for target, ranges in state.moves.items():
        if plain := both(ranges, _PLAIN):
            spelled = "".join(_code(low) if low == high else f"{_code(low)}-{_code(high)}" for low, high in plain)
            ways.append(f"[{spelled}] {name(target)}")
        ways += [f'"{text}" {name(target)}' for code, text in _SPELLED.items() if both(ranges, ((code, code),))]
    # A state without a way is one that no other leads to.
    return " | ".join(ways) or '""'


def _code(code: int) -> str:
    return chr(code) if code < 0x80 and chr(code).isalnum() else f"\\U{code:08X}"


def _is_one(ranges: Ranges) -> bool:
    return len(ranges) == 1 and ranges[0][0] == ranges[0][1]


class _Reader:
    """Reads an expression from its beginning to its end."""

    def __init__(self, text: str) -> None:
        self._text, self._at = text, 0

    def whole(self) -> Node:
        """All of it. Raises ValueError."""
        node = alt(self._anchored() for _ in self._alternatives())
        if self._at < len(self._text):
            raise ValueError("a ) closes nothing")
        return node

    def _alternatives(self) -> Iterator[None]:
        yield
        while self._take("|"):
            yield

    def _anchored(self) -> Node:
        if not self._take("^"):
            raise ValueError("each alternative has to begin with ^")
        node = self._sequence()
        if not self._take("$"):
            raise ValueError("each alternative has to end with $")
        return node

    def _sequence(self) -> Node:
        parts: list[Node] = []
        while self._at < len(self._text) and self._text[self._at] not in "|)$":
            parts.append(self._counted(self._one()))
        return cat(parts)

    def _counted(self, node: Node) -> Node:
        found = _COUNT.match(self._text, self._at)
        if found is None:
            return node
        self._at = found.end()
        low, high = _SIGNS.get(found[0], (int(found[1] or 0), None))
        if found[1]:
            high = low if not found[2] else int(found[3]) if found[3] else None
        if high is not None and high < low:
            raise ValueError(f"{found[0]} counts backwards")
        # Lazy or not, the same texts fit.
        self._take("?")
        if self._at < len(self._text) and self._text[self._at] in "*+?":
            raise ValueError(f"{self._text[self._at]} repeats a repetition")
        return rep(node, low, high)

    def _one(self) -> Node:
        sign = self._text[self._at]
        self._at += 1
        if sign == "(":
            return self._group()
        if sign == "[":
            return Chars(both(self._set(), _EVERY))
        if sign == "\\":
            return Chars(both(self._escape(), _EVERY))
        if sign == ".":
            return Chars(_DOT)
        if sign in "*+?{}]^":
            raise ValueError(f"{sign} at {self._at} has to be spelled \\{sign}")
        return Chars(both(((ord(sign), ord(sign)),), _EVERY))

    def _group(self) -> Node:
        if self._take("?") and not self._take(":"):
            raise ValueError("groups that begin with (? cannot be kept, but for (?:")
        node = alt([self._sequence() for _ in self._alternatives()])
        if not self._take(")"):
            raise ValueError("a ( is not closed")
        return node

    def _set(self) -> Ranges:
        inverse = self._take("^")
        ranges: list[tuple[int, int]] = []
        while not self._take("]"):
            low = self._member()
            if not (_is_one(low) and self._text[self._at : self._at + 2] not in {"-]", ""} and self._take("-")):
                ranges += low
                continue
            high = self._member()
            if not _is_one(high) or high[0][0] < low[0][0]:
                raise ValueError("a range in [ ] has no end, or runs backwards")
            ranges.append((low[0][0], high[0][1]))
        return without(_EVERY, union(ranges)) if inverse else union(ranges)

    def _member(self) -> Ranges:
        if self._at >= len(self._text):
            raise ValueError("a [ is not closed")
        sign = self._text[self._at]
        self._at += 1
        return self._escape() if sign == "\\" else ((ord(sign), ord(sign)),)

    def _escape(self) -> Ranges:
        sign = self._text[self._at : self._at + 1]
        if found := _HEX.match(self._text, self._at):
            self._at = found.end()
            code = int(found[1] or found[2], 16)
            return ((code, code),)
        self._at += 1
        if sign in _CONTROLS:
            return ((_CONTROLS[sign], _CONTROLS[sign]),)
        if sign.lower() in _CLASSES:
            ranges = _CLASSES[sign.lower()]
            return ranges if sign.islower() else without(_EVERY, union([*ranges, *_HARDLY_SPACES]))
        if not sign or (sign.isascii() and sign.isalnum()):
            raise ValueError(f"\\{sign} cannot be kept")
        return ((ord(sign), ord(sign)),)

    def _take(self, sign: str) -> bool:
        if self._text.startswith(sign, self._at):
            self._at += 1
            return True
        return False
