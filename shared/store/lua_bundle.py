"""Bundles each script with only the parts of the Lua libraries that it uses, so that no call creates unused functions.

The store executes the whole text of a script at each call: it creates every function of the text again and
garbage-collects these functions later. In a measurement, this took a quarter of the time of a refusal. A library is
therefore split into its top-level statements, and a script gets only those statements that its body uses, directly or
indirectly. A function that the script's header names under LATER or RARELY is created only when it is called.

The functions are fields of one table, `lib`, and not locals. A function that is created keeps a reference to each outer
local that it names, and finds each of them in a list of all locals that any function before it names: with 300
functions, that took half of the time of a claim that finds no job. Now a function names one outer local, the table.
"""

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
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
#: Lists of names: of locals that are not at the top level, of loops and of parameters.
_INNER = re.compile(
    r"(?:^[ \t]+|[;)] )local (?:function )?([\w, ]+)|\bfor ([\w, ]+) (?:in|=)|\bfunction ?\w*\(([^)]*)\)", re.MULTILINE
)
#: A name, or a text, comment or key of a table, which contains no name of a variable.
_NAME_OR_TEXT = re.compile(
    r"(?P<text>'(?:\\.|[^'\\])*'|--[^\n]*|(?<=[{,])\s*\w+ =(?!=))|(?:(?<![\w.:])|(?<=\.\.))(?P<name>[A-Za-z_]\w*)"
)
#: A line that starts with one of these prefixes continues the statement of the previous line.
_CONTINUATION_PREFIXES = (" ", "end", "else", "}", ")", "\t")


#: A call that reads fields of a hash, and what divides its arguments.
_READ = re.compile(r"\b(read|peek)_fields\(")
#: The beginning of a statement that makes one variable.
_VARIABLE = re.compile(r"\blocal (\w+) = \Z")
_REDIS = re.compile(r"\bredis\.(?=p?call\b|sha1hex\b)")
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
def split_statements(library: str) -> tuple[Statement, ...]:
    """Return the top-level statements of a library in order, without comments."""
    statements: list[list[str]] = []
    for line in _code(library):
        if not line.startswith(_CONTINUATION_PREFIXES):
            statements.append([])
        statements[-1].append(line)
    return tuple(_statement("\n".join(lines)) for lines in statements)


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
            fields = ", ".join(f"[{name}] = %s[{index}]" for index, name in enumerate(names, 1))
            before, values = code[done : call.start()], f"{command}('HMGET', %s, {', '.join(names)})"
            variable = _VARIABLE.search(before)
            if variable and code.startswith("\n", end):
                own = variable[1]
                read = f"{values} {own} = {{ {fields} }}"
                parts.append(before + read % (arguments[0], *[own] * len(names)))
            else:
                read = f"(function(read_key) local read_values = {values} return {{ {fields} }} end)(%s)"
                parts.append(before + read % ("read_key", *["read_values"] * len(names), arguments[0]))
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


def bundle(statements: Sequence[Statement], body: str, *, later: Iterable[str] = (), rarely: Iterable[str] = ()) -> str:
    """Return the code of a script: the statements that `body` uses, and then `body`.

    The functions named in `later`, and all that only they need, are created when the first of them is called; so are
    those named in `rarely`. Raises ValueError if one of these names is not that of a function defined in `statements`,
    or if the body defines a name that a statement in the bundle does.
    """
    definitions = {name: statement for statement in statements for name in statement.defines}
    for section, names in (("LATER", later), ("RARELY", rarely)):
        for name in names:
            if name not in definitions or not _FUNCTION.match(definitions[name].text):
                raise ValueError(f"{section} names {name!r}, which is not a function of the libraries in USES")
    always = [word for statement in statements if not statement.defines for word in statement.words]
    needed = [*always, *_names("\n".join(_code(body)))]
    every = _reachable(definitions, needed)
    # `inline_constants` puts the values of constants in place of their names, so all of them stay at the top level.
    constants = {statement for statement in every if _CONSTANTS.fullmatch(f"{statement.text}\n")}
    table = _Table(every, body)
    rare = frozenset(rarely) & table.fields
    reached = _reachable(definitions, needed, rare | (frozenset(later) & table.fields)) | constants
    reached_later = _reachable(definitions, needed, rare) - reached
    for statement in statements:
        if statement in reached or not statement.defines:
            table.add(statement)
        elif statement in every:
            table.add_later(statement, 0 if statement in reached_later else 1)
    return table.code()


class _Table:
    """The code of one script, whose library functions and variables are fields of the table `lib`."""

    def __init__(self, every: Collection[Statement], body: str) -> None:
        """Create a table for the statements `every`: those that the script may execute."""
        texts = [body, *(statement.text for statement in every)]
        #: Names that are also those of a parameter or of a local of a function. They stay locals.
        self._shadowed = frozenset(name for text in texts for name in _inner_names(text))
        self.fields = frozenset(
            name for statement in every if _is_field(statement) for name in statement.defines - self._shadowed
        )
        outer = _outer_names(body)
        twice = sorted(name for statement in every for name in statement.defines & outer)
        if twice:
            raise ValueError(f"the name {twice[0]!r} is defined twice")
        self._body = body
        #: Locals, fields of the table, and statements to execute after the table is made: those that have effects, and
        #: the values of variables that may depend on these or on fields.
        self._locals: list[str] = []
        self._constructor: list[str] = []
        self._later: list[str] = []
        #: Two groups of statements. Each is executed when a function is called that is not in the table, in this order.
        self._groups: tuple[list[str], list[str]] = ([], [])
        #: Variables that have no value yet when the table is made.
        self._unset: set[str] = set()
        #: Whether `redis.call` is a function of a library (lib/base/guard.lua).
        self._guards = False

    def add(self, statement: Statement) -> None:
        """Add a statement, in the order of the libraries."""
        text, is_function = self._renamed(statement.text), _FUNCTION.match(statement.text) is not None
        names, _, value = text.removeprefix("local ").partition(" = ")
        is_late = not is_function and ("lib." in value or not self._unset.isdisjoint(_names(value)))
        if is_late or not value:
            self._unset |= statement.defines
        if not statement.defines:
            self._later.append(text)
        elif statement.defines == {"redis"}:
            self._guards = True
            for key, function in re.findall(r"(\w+) = ([\w.]+)", value):
                self._constructor.append(f"{key} = false,")
                self._later.append(f"lib.{key} = {function}")
        elif not statement.defines <= self.fields:
            self._locals.append(f"local {names}" if is_late else text)
            self._later += [f"{names} = {value}"] if is_late else []
        elif is_function or value:
            name, value = self._field(text)
            self._constructor.append(f"{name} = {'false' if is_late else value},")
            self._later += [f"lib.{name} = {value}"] if is_late else []

    def add_later(self, statement: Statement, group: int) -> None:
        """Add a statement that is executed when the first function of its group is called."""
        text, is_function = self._renamed(statement.text), _FUNCTION.match(statement.text) is not None
        if not statement.defines <= self.fields:
            self._groups[group].append(text)
        elif is_function or " = " in text:
            self._groups[group].append("lib.{} = {}".format(*self._field(text)))

    def code(self) -> str:
        lookup: list[str] = []
        for field, group in (("rare_field", self._groups[1]), ("later_field", self._groups[0])):
            if group:
                lookup = [_LOOKUP.format(field, "\n".join([*group, *(lookup or ["setmetatable(lib, nil)"])]))]
        fields = ["lib = {", *self._constructor, "}"] if self._constructor or lookup else []
        declared = ["local lib"] if fields else []
        return "\n".join([*declared, *self._locals, *fields, *lookup, *self._later, self._renamed(self._body)])

    def _renamed(self, text: str) -> str:
        """Return code with `lib.name` in place of each name that is a field, and `lib.call` for `redis.call`."""

        def renamed(match: re.Match[str]) -> str:
            if match["text"] or match["name"] not in self.fields:
                return match[0]
            return f"lib.{match['name']}"

        text = _NAME_OR_TEXT.sub(renamed, text)
        return _REDIS.sub("lib.", text) if self._guards else text

    @staticmethod
    def _field(text: str) -> tuple[str, str]:
        """Return the name and the value of a field that a statement defines; '' for a variable without a value."""
        name, _, value = text.removeprefix("local ").partition(" = ")
        if text.startswith("local function "):
            head, _, rest = text.removeprefix("local function ").partition("(")
            return head.removeprefix("lib."), f"function({rest}"
        return name.removeprefix("lib."), value


def _reachable(
    definitions: dict[str, Statement], words: Iterable[str], without: frozenset[str] = frozenset()
) -> set[Statement]:
    """Return the statements that define `words`, and all statements that these use, directly or indirectly.

    The statements that define a name in `without`, and those that only they use, are left out.
    """
    reached: set[Statement] = set()
    pending = list(words)
    while pending:
        statement = definitions.get(pending.pop())
        if statement is not None and statement not in reached and not statement.defines & without:
            reached.add(statement)
            pending.extend(statement.words)
    return reached


def _is_constant(statement: Statement) -> bool:
    return _CONSTANTS.fullmatch(f"{statement.text}\n") is not None


def _is_field(statement: Statement) -> bool:
    """Return whether what a statement defines can be a field: a function, or one variable with a value."""
    has_value = _FUNCTION.match(statement.text) or " = " in statement.text
    return len(statement.defines - {"redis"}) == 1 and bool(has_value) and not _is_constant(statement)


@cache
def _inner_names(code: str) -> frozenset[str]:
    """Return the names of all parameters, and of all locals that are not at the top level."""
    # Few lines have such names, and the pattern is slow.
    lines = [line for line in _code(code) if "local " in line or "for " in line or "function" in line]
    lists = _INNER.findall(_STRING.sub("''", "\n".join(lines)))
    return frozenset(name.strip() for names in lists for part in names for name in part.split(",") if name.strip())


def _outer_names(code: str) -> set[str]:
    """Return the names of all locals at the top level."""
    lists = re.findall(r"^local (?:function )?([\w, ]+)", code, re.MULTILINE)
    return {name.strip() for names in lists for name in names.split(",")}


#: Adds a group of functions to the table when the first of them is looked up.
_LOOKUP = """setmetatable(lib, {{ __index = function(_, {0})
{1}
return lib[{0}]
end }})"""
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
