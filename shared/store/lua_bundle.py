"""Bundles each script with only the parts of the Lua libraries that it uses, so that no call creates unused functions.

The store executes the whole text of a script at each call: it creates every function of the text again and
garbage-collects these functions later. In a measurement, this took a quarter of the time of a refusal. A library is
therefore split into its top-level statements, and a script gets only those statements that its body uses, directly or
indirectly. A function that the script's header names under RARELY is created only when it is called.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache

_STRING = re.compile(r"'(?:\\.|[^'\\])*'")
#: A name that is not the field of a table. Two dots join texts.
_NAME = re.compile(r"(?:(?<![\w.:])|(?<=\.\.))[A-Za-z_]\w*")
_LOCAL = re.compile(r"local (?:function )?([\w, ]+)")
#: A name of another file, or a field of a table.
_QUALIFIED = re.compile(r"(?:(?<![\w.:])|(?<=\.\.))([a-z]\w*)\.(\w+)")
_FUNCTION = re.compile(r"local function (\w+)\(")
#: A top-level line that defines nothing but constants, whose names are in capitals and whose values are numbers.
_CONSTANTS = re.compile(r"^local ([A-Z][A-Z0-9_]*(?:, [A-Z][A-Z0-9_]*)*) = (-?[\d.e]+(?:, -?[\d.e]+)*)\n", re.MULTILINE)
#: A line that starts with one of these prefixes continues the statement of the previous line.
_CONTINUATION_PREFIXES = (" ", "end", "else", "}", ")", "\t")


#: A call that reads fields of a hash, and what divides its arguments.
_READ = re.compile(r"\b(read|peek)_fields\(")
_DIVIDER = re.compile(r"'(?:\\.|[^'\\])*'|[()\[\]{},]")


@dataclass(frozen=True, eq=False)
class Statement:
    """One top-level statement of a library. Statements are compared by identity, which is much faster."""

    text: str
    #: The names of the locals that the statement defines; empty for a statement that is executed only for its effect.
    defines: frozenset[str]
    #: All names in the statement but those of fields; keywords are among them.
    words: frozenset[str]


@cache  # most libraries are used by many scripts
def split_statements(library: str) -> list[Statement]:
    """Return the top-level statements of a library in order, without comments."""
    statements: list[list[str]] = []
    for line in _code(library):
        if not line.startswith(_CONTINUATION_PREFIXES):
            statements.append([])
        statements[-1].append(line)
    return [_statement("\n".join(lines)) for lines in statements]


@cache
def _defined(library: str) -> frozenset[str]:
    return frozenset(name for statement in split_statements(library) for name in statement.defines)


def with_plain_names(text: str, libraries: Mapping[str, str]) -> str:
    """Return the code with `name` in place of `library.name`, for the names that these libraries define."""

    def plain(match: re.Match[str]) -> str:
        library = libraries.get(match[1])
        return match[2] if library is not None and match[2] in _defined(library) else match[0]

    return _QUALIFIED.sub(plain, text)


def unroll_reads(code: str) -> str:
    """Return the code with a table constructor in place of each `read_fields(key, { … })` whose names are written out.

    A constructor makes the table at its full size. A loop that adds one field after the other makes it several times,
    which took a tenth of the instructions of a refusal.
    """
    parts, done = [], 0
    for call in _READ.finditer(code):
        arguments, end = _arguments(code, call.end())
        if len(arguments) == 2 and arguments[1].startswith("{"):
            names, _ = _arguments(arguments[1], 1)
            command = {"read": "redis.call", "peek": "redis.pcall"}[call[1]]
            fields = ", ".join(f"[{name}] = read_values[{index}]" for index, name in enumerate(names, 1))
            parts.append(
                f"{code[done : call.start()]}(function(read_key) "
                f"local read_values = {command}('HMGET', read_key, {', '.join(names)}) "
                f"return {{ {fields} }} end)({arguments[0]})"
            )
            done = end
    return "".join([*parts, code[done:]])


def _arguments(code: str, start: int) -> tuple[list[str], int]:
    """Return the arguments between `start`, which is after a bracket, and its closing bracket, and the index after."""
    arguments, begin, depth = [], start, 0
    for divider in _DIVIDER.finditer(code, start):
        depth += (divider[0] in "([{") - (divider[0] in ")]}")
        if depth < 0 or (divider[0] == "," and depth == 0):
            arguments.append(" ".join(code[begin : divider.start()].split()))
            begin = divider.end()
        if depth < 0:
            return arguments, begin
    raise ValueError(f"the bracket before {code[start : start + 30]!r} is not closed")


def _code(text: str) -> list[str]:
    """Return the lines of `text` that are neither empty nor comments."""
    return [line for line in text.splitlines() if line.strip() and not line.lstrip().startswith("--")]


def _statement(text: str) -> Statement:
    match = _LOCAL.match(text)
    defines = frozenset(match[1].replace(" ", "").split(",")) if match else frozenset[str]()
    return Statement(text, defines, frozenset(_names(text)))


def _names(code: str) -> list[str]:
    return _NAME.findall(_STRING.sub("''", code))


def bundle(statements: Sequence[Statement], body: str, rarely: Iterable[str] = ()) -> str:
    """Return the library code to insert before `body`: the statements that `body` uses, in their original order.

    The functions named in `rarely` are created only when they are called. Raises ValueError if a name in `rarely` is
    not that of a function defined in `statements`.
    """
    rare = frozenset(rarely)
    definitions = {name: statement for statement in statements for name in statement.defines}
    for name in rare:
        if name not in definitions or not _FUNCTION.match(definitions[name].text):
            raise ValueError(f"RARELY names {name!r}, which is not a function of the libraries in USES")
    always = [word for statement in statements if not statement.defines for word in statement.words]
    needed = [*always, *_names("\n".join(_code(body)))]
    # `inline_constants` puts the values of constants in place of their names, so all of them stay at the top level.
    constants = {
        statement for statement in _reachable(definitions, needed) if _CONSTANTS.fullmatch(f"{statement.text}\n")
    }
    reached = _reachable(definitions, needed, rare) | constants
    lines: list[str] = []
    for statement in statements:
        if statement.defines & rare:
            if statement in reached:
                lines.append(_lazy_function(statement, statements, definitions, frozenset(reached)))
        elif not statement.defines or statement in reached:
            lines.append(statement.text)
    return "\n".join(lines)


def _reachable(
    definitions: dict[str, Statement],
    words: Iterable[str],
    stop: frozenset[str] = frozenset(),
    without: frozenset[Statement] = frozenset(),
) -> set[Statement]:
    """Return the statements that define `words`, and all statements that these use, directly or indirectly.

    A statement that defines a name in `stop` is returned, but not the statements that only it uses. The statements
    `without`, and those that only they use, are left out.
    """
    reached: set[Statement] = set()
    pending = list(words)
    while pending:
        statement = definitions.get(pending.pop())
        if statement is not None and statement not in reached and statement not in without:
            reached.add(statement)
            if not statement.defines & stop:
                pending.extend(statement.words)
    return reached


def _lazy_function(
    rare: Statement, statements: Sequence[Statement], definitions: dict[str, Statement], included: frozenset[Statement]
) -> str:
    """Return Lua code of a stand-in for the function that `rare` defines. It has the same name.

    When called, the stand-in first executes the statements that the real function needs and that are not in
    `included`. Then it defines the real function and calls it.
    """
    needed = _reachable(definitions, rare.words, without=included) | {rare}
    (name,) = rare.defines
    inner = "\n".join(statement.text for statement in statements if statement in needed)
    indented = "\n".join(f"  {line}" for line in inner.splitlines())
    return f"local function {name}(...)\n{indented}\n  return {name}(...)\nend"


_CAPITALS = re.compile(r"\b[A-Z][A-Z0-9_]*\b")


def inline_constants(source: str) -> str:
    """Return the script with its numeric constants in place of their names, because Lua allows only 200 locals."""
    values: dict[str, str] = {}
    for match in _CONSTANTS.finditer(source):
        names, numbers = match[1].split(", "), match[2].split(", ")
        if len(names) == len(numbers):
            # Without parentheses, `-` before a negative number would begin a comment.
            values |= {
                name: f"({value})" if value[0] == "-" else value for name, value in zip(names, numbers, strict=True)
            }
    if not values:
        return source
    rest = _CONSTANTS.sub(lambda match: "" if match[1].split(", ")[0] in values else match[0], source)
    return _CAPITALS.sub(lambda match: values.get(match[0], match[0]), rest)
