"""Takes from the Lua libraries what a script needs, so that a call makes no function it does not use.

A store runs a script's text anew at each call: every function in it is made again, and cleared away later.
Measured, that was a quarter of a refusal. So a library is cut into its top-level statements, and a script
gets those that its body reaches. What the script declares RARELY is made only when it is called.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

_NAME = re.compile(r"[A-Za-z_]\w*")
_LOCAL = re.compile(r"local (?:function )?([\w, ]+)")
_FUNCTION = re.compile(r"local function (\w+)\(")
#: How a line begins that goes on with the statement before it.
_GOES_ON = (" ", "end", "else", "}", ")", "\t")


@dataclass(frozen=True)
class Part:
    """One top-level statement of a library."""

    text: str
    #: The locals it makes; none for a statement that is there for what it does.
    makes: frozenset[str]
    #: Every word in it.
    words: frozenset[str]


def cut(library: str) -> list[Part]:
    """A library's statements in their order, comments left out."""
    statements: list[list[str]] = []
    for line in _code(library):
        if not line.startswith(_GOES_ON):
            statements.append([])
        statements[-1].append(line)
    return [_part("\n".join(lines)) for lines in statements]


def _code(text: str) -> list[str]:
    """Its lines without comments, which name nothing."""
    return [line for line in text.splitlines() if line.strip() and not line.lstrip().startswith("--")]


def _part(text: str) -> Part:
    made = _LOCAL.match(text)
    makes = frozenset(made[1].replace(" ", "").split(",")) if made else frozenset[str]()
    return Part(text, makes, frozenset(_NAME.findall(text)))


def gather(parts: Sequence[Part], body: str, rarely: Iterable[str] = ()) -> str:
    """The text that stands before `body`: what it reaches, in order; the functions named `rarely` made at their call.

    Raises ValueError for a rare name that no part makes, or that is no function.
    """
    rare = frozenset(rarely)
    makers = {name: part for part in parts for name in part.makes}
    for name in rare:
        if name not in makers or not _FUNCTION.match(makers[name].text):
            raise ValueError(f"RARELY names {name!r}, which is no function of the libraries that are used")
    always = [word for part in parts if not part.makes for word in part.words]
    reached = _reach(makers, [*always, *_NAME.findall("\n".join(_code(body)))], rare)
    lines: list[str] = []
    for part in parts:
        if part.makes & rare:
            if part in reached:
                lines.append(_at_call(part, parts, makers, reached))
        elif not part.makes or part in reached:
            lines.append(part.text)
    return "\n".join(lines)


def _reach(makers: dict[str, Part], words: Iterable[str], stop: frozenset[str] = frozenset()) -> set[Part]:
    """The parts that these words lead to. Through a part that makes a name of `stop` they lead no further."""
    reached: set[Part] = set()
    ahead = list(words)
    while ahead:
        part = makers.get(ahead.pop())
        if part is not None and part not in reached:
            reached.add(part)
            if not part.makes & stop:
                ahead.extend(part.words)
    return reached


def _at_call(rare: Part, parts: Sequence[Part], makers: dict[str, Part], there: set[Part]) -> str:
    """A function of the same name that makes the real one, and what only it needs, and calls it."""
    needed = _reach(makers, rare.words) - there | {rare}
    (name,) = rare.makes
    inner = "\n".join(part.text for part in parts if part in needed)
    indented = "\n".join(f"  {line}" for line in inner.splitlines())
    return f"local function {name}(...)\n{indented}\n  return {name}(...)\nend"
