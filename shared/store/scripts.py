"""Loads the scripts shared/lua/*.lua, and checks each call and each answer against the header of its script.

The header is the script's signature. Its sections (shared/lua/README.md) are KEYS (names from shared/store/keys.py),
ARGV (name, type and meaning of each argument), ANSWERS (the closed set of first words), KEEPS (invariants of
docs/states.md), USES (library files), LATER and RARELY (functions that are created only when called). The loader puts a
prelude before the body of the script, which defines a local for each argument. After the prelude comes the library code
that the body uses (shared/store/lua_bundle.py). Code names what another file defines with the file's name, as
`stats.count`; the loader removes the file's name. A call of `read_fields` with a list of names becomes a table
constructor. Each `k_<name>` in the code is replaced by the key or its beginning as a literal, because Lua allows only
200 locals. For a key with a suffix, it is a function of the prelude. The literals begin with the key prefix of the
cell that a call is for.
"""

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import Any, Literal, get_args

import redis
from redis.exceptions import NoScriptError, ResponseError

from shared.errors import ScriptError
from shared.store import keys, lua_bundle
from shared.store.clients.hash_slots import hash_tag, slot_of
from shared.store.clients.key_prefix import prefix_of
from shared.store.clients.quick_client import execute_together

ArgType = Literal["text", "int", "rest"]
Value = str | bytes | int
#: The arguments of one call, by name.
Call = dict[str, Value | Sequence[Value]]

#: The library that every script uses without naming it, and its function that nearly no call needs.
_GUARD, _MEND = "guard", "mend"

#: Lua's numbers are doubles, which cannot represent every integer beyond this one.
_MAX_INT = 2**53

_SECTIONS = ("KEYS", "ARGV", "ANSWERS", "KEEPS", "USES", "LATER", "RARELY")
_SECTION = re.compile(rf"-- ({'|'.join(_SECTIONS)})\b ?(.*)\Z")
#: The name of a key in the code.
_KEY = re.compile(r"\bk_(\w+)\b")
#: A key that the code names without the table.
_RAW_KEY = re.compile(r"'((?:penstock|rq):[^']*)'")
_ARG = re.compile(r"(\w+) (\w+) · (.+)\Z")


@dataclass(frozen=True)
class Arg:
    """One argument of a script. It takes one element of ARGV, or all remaining elements if its type is `rest`."""

    name: str
    type: ArgType


@dataclass(frozen=True)
class Header:
    """The parsed header of a Lua file."""

    name: str
    summary: str
    keys: tuple[str, ...]
    args: tuple[Arg, ...]
    answers: frozenset[str]
    keeps: tuple[int, ...]
    uses: tuple[str, ...]
    later: tuple[str, ...]
    rarely: tuple[str, ...]

    @cached_property
    def names(self) -> frozenset[str]:
        """The names of the arguments."""
        return frozenset(arg.name for arg in self.args)


@dataclass(frozen=True)
class Script:
    """A loaded script, for cells without a prefix; `in_cell` returns it for any other cell."""

    header: Header
    source: str
    sha: str
    #: The keys that a call names: none in a cell without a prefix.
    named: tuple[str, ...]
    #: The source with `k_<name>` in place of keys, and the script for each prefix that this process has used.
    _template: str = field(repr=False)
    _in_cells: dict[str, "Script"] = field(default_factory=dict, repr=False, compare=False)

    def in_cell(self, prefix: str) -> "Script":
        """Return the script for the cell with this key prefix. Raises ScriptError if it would need two hash slots.

        Its calls name one key of the cell, so that a cluster refuses a call at the wrong node before it has effects.
        """
        if not prefix:
            return self
        found = self._in_cells.get(prefix)
        if found is None:
            _check_one_slot(self.header, self._template, prefix)
            found = self._in_cells[prefix] = _script(self.header, self._template, prefix, (keys.config(),))
        return found

    def argv(self, **given: Value | Sequence[Value]) -> list[Value]:
        """Return the arguments in the order of ARGV. Raises ScriptError if a name or type does not match the header."""
        if given.keys() != self.header.names:
            names = [arg.name for arg in self.header.args]
            raise ScriptError(f"{self.header.name}: takes the arguments {names}, but was called with {sorted(given)}")
        argv: list[Value] = []
        for arg in self.header.args:
            value = given[arg.name]
            if type(value) is str and arg.type == "text":  # the most frequent case, which needs no further check
                argv.append(value)
            elif arg.type == "rest":
                if isinstance(value, str | bytes | int):
                    raise ScriptError(f"{self.header.name}: {arg.name} takes a sequence, not {value!r}")
                argv.extend(value)
            elif arg.type == "int" and (isinstance(value, bool) or not isinstance(value, int)):
                raise ScriptError(f"{self.header.name}: {arg.name} takes an int, not {value!r}")
            elif isinstance(value, int) and abs(value) > _MAX_INT:
                raise ScriptError(f"{self.header.name}: {arg.name} takes an int within 2^53, not {value!r}")
            elif arg.type == "text" and not isinstance(value, str | bytes):
                raise ScriptError(f"{self.header.name}: {arg.name} takes text, not {value!r}")
            else:
                argv.append(value)  # type: ignore[arg-type]  # sequences were handled above
        return argv

    def call(self, client: redis.Redis, **given: Value | Sequence[Value]) -> tuple[str, list[Any]]:
        """Run the script and return (the first word of its answer, the values after it).

        Raises ScriptError if the header does not declare this first word.
        """
        argv = self.argv(**given)
        script = self.in_cell(prefix_of(client))
        try:
            raw: Any = client.evalsha(script.sha, len(script.named), *script.named, *argv)
        except NoScriptError:
            raw = client.eval(script.source, len(script.named), *script.named, *argv)
        return self.answer(raw)

    def answer(self, raw: Any) -> tuple[str, list[Any]]:
        """Return (the first word of a raw reply, the values after it). Raises ScriptError for an undeclared word."""
        word = raw[0].decode() if isinstance(raw, list) and raw and isinstance(raw[0], bytes) else repr(raw)
        if word not in self.header.answers:
            raise ScriptError(f"{self.header.name}: answered {word!r}, but declares only {sorted(self.header.answers)}")
        return word, raw[1:]


def call_together(
    client: redis.Redis, calls: Sequence[tuple[Script, Call]]
) -> list[tuple[str, list[Any]] | ResponseError]:
    """Run scripts in order, in one round trip.

    Return, for each call, the script's answer, or the error with which the store replied.
    """
    prefix = prefix_of(client)
    packed = [(script.in_cell(prefix), script.argv(**given)) for script, given in calls]
    commands = (("EVALSHA", script.sha, len(script.named), *script.named, *argv) for script, argv in packed)
    replies = execute_together(client, *commands)
    answers: list[tuple[str, list[Any]] | ResponseError] = []
    for (script, argv), reply in zip(packed, replies, strict=True):
        raw = reply
        if isinstance(raw, NoScriptError):
            try:
                raw = client.eval(script.source, len(script.named), *script.named, *argv)
            except ResponseError as error:
                raw = error
        answers.append(raw if isinstance(raw, ResponseError) else script.answer(raw))
    return answers


@cache
def load(name: str) -> Script:
    """Load shared/lua/<name>.lua with its libraries. Raises ScriptError if the header and the body do not match."""
    header, body = read(f"{name}.lua")
    libs = _libraries((_GUARD, *header.uses))
    statements = [statement for _, text in libs for statement in lua_bundle.split_statements(text)]
    try:
        taken = {arg.name for arg in header.args} & {name for each in statements for name in each.defines}
        if taken:
            raise ScriptError(f"{name}: the name {min(taken)!r} is defined twice")
        code = lua_bundle.bundle(statements, body, later=header.later, rarely=(*header.rarely, _MEND))
    except ValueError as error:
        raise ScriptError(f"{name}: {error}") from None
    lines = []
    for index, arg in enumerate(header.args, 1):
        slot = {"text": f"ARGV[{index}]", "int": f"tonumber(ARGV[{index}])", "rest": str(index)}[arg.type]
        lines.append(f"local {arg.name} = {slot}")
    template = "\n".join([*lines, code])
    if raw := _RAW_KEY.search(template):
        raise ScriptError(f"{name}: the key {raw[1]!r} is not named by the table in shared/store/keys.py")
    _check_answers(header, body)
    _check_locals(header, template)
    return _script(header, lua_bundle.inline_constants(template), "", ())


def _script(header: Header, template: str, prefix: str, named: tuple[str, ...]) -> Script:
    """Return the script with the keys of the cell with this prefix as literals."""
    names = sorted(set(_KEY.findall(template)))
    functions = [_key_function(name, prefix) for name in names if keys.TABLE[name].suffix]
    source = "\n".join([*functions, _KEY.sub(lambda name: _key_literal(name, prefix), template)])
    sha = hashlib.sha1(source.encode(), usedforsecurity=False).hexdigest()
    return Script(header, source, sha, named, template)


def _check_one_slot(header: Header, template: str, prefix: str) -> None:
    """Raise ScriptError if the keys of a cell whose prefix has a hash tag are not all in one hash slot."""
    if not hash_tag(prefix):
        return
    texts = {f"{prefix}{keys.TABLE[name].prefix}" for name in _KEY.findall(template)}
    if slots := {slot_of(text) for text in texts} - {slot_of(prefix)}:
        raise ScriptError(f"{header.name}: a key lies outside the slot of PENSTOCK_KEY_PREFIX={prefix!r}: {slots}")


def preload(*chosen: str) -> None:
    """Load these scripts, or all, so that no claim or request has to wait for that later.

    All take about half a second of CPU time.
    """
    for name in chosen or names():
        load(name)


def names() -> list[str]:
    return sorted(entry.name[:-4] for entry in files("shared").joinpath("lua").iterdir() if entry.name.endswith(".lua"))


def _key_function(name: str, prefix: str) -> str:
    key = keys.TABLE[name]
    return f"local function k_{name}(part) return '{prefix}{key.prefix}' .. part .. '{key.suffix}' end"


def _key_literal(name: re.Match[str], prefix: str) -> str:
    """Return the Lua literal of a key or its beginning, in place of its name; the name itself if it is a function's."""
    key = keys.TABLE[name[1]]
    return name[0] if key.suffix else f"'{prefix}{key.prefix}'"


@cache  # most libraries are used by many scripts
def read(path: str) -> tuple[Header, str]:
    """Return the header of a file below shared/lua, and its text with `name` in place of each `library.name`.

    Raises ScriptError if the header is invalid.
    """
    text = files("shared").joinpath("lua").joinpath(path).read_text("utf-8")
    header = parse(path.removesuffix(".lua"), text)
    used = set(_KEY.findall(text))
    if used != set(header.keys):
        raise ScriptError(f"{path}: the header names the keys {sorted(header.keys)}, but the body uses {sorted(used)}")
    libraries = {library: read(_library_path(library))[1] for library in header.uses}
    return header, lua_bundle.unroll_reads(lua_bundle.with_plain_names(text, libraries))


def parse(name: str, text: str) -> Header:
    """Parse the header of a Lua file. Raises ScriptError, whose message quotes the invalid part."""
    found: dict[str, list[str]] = {
        "KEYS": [],
        "ARGV": [],
        "ANSWERS": [],
        "KEEPS": [],
        "USES": [],
        "LATER": [],
        "RARELY": [],
    }
    lines = _leading_comment(text)
    if not lines or not lines[0].startswith(f"-- {name.rsplit('/', 1)[-1]}: "):
        raise ScriptError(f"{name}: the first line must be '-- {name}: what it does'")
    section = ""
    for line in lines[1:]:
        match = _SECTION.match(line)
        if match:
            section = match[1]
            found[section].append(match[2].strip())
        elif section and line.startswith("--   "):
            found[section].append(line.removeprefix("--").strip())
        else:
            section = ""
    key_names = tuple(" ".join(found["KEYS"]).split())
    unknown = [key for key in key_names if key not in keys.TABLE]
    if unknown:
        raise ScriptError(f"{name}: these keys are not in shared/store/keys.py: {unknown}")
    return Header(
        name=name,
        summary=lines[0].split(": ", 1)[1],
        keys=key_names,
        args=tuple(_parse_arg(name, line) for line in found["ARGV"] if line),
        answers=frozenset(" ".join(found["ANSWERS"][:1]).split()),
        keeps=tuple(int(number) for number in " ".join(found["KEEPS"]).split()),
        uses=tuple(" ".join(found["USES"]).split()),
        later=tuple(" ".join(found["LATER"]).split()),
        rarely=tuple(" ".join(found["RARELY"]).split()),
    )


def _leading_comment(text: str) -> list[str]:
    lines = []
    for line in text.splitlines():
        if not line.startswith("--"):
            break
        lines.append(line)
    return lines


def _parse_arg(name: str, line: str) -> Arg:
    match = _ARG.match(line)
    if match is None or match[2] not in get_args(ArgType):
        raise ScriptError(f"{name}: the ARGV line is not 'name text|int|rest · meaning': {line!r}")
    return Arg(match[1], match[2])  # type: ignore[arg-type]  # checked in the lines above


def _libraries(uses: Sequence[str]) -> list[tuple[Header, str]]:
    """Return each used library once, in an order in which every library comes after the libraries that it uses."""
    ordered: dict[str, tuple[Header, str]] = {}

    def visit(name: str) -> None:
        if name not in ordered:
            header, body = read(_library_path(name))
            for other in header.uses:
                visit(other)
            ordered[name] = (header, body)

    for name in uses:
        visit(name)
    return list(ordered.values())


@cache
def _library_path(name: str) -> str:
    """Return the path of a library below shared/lua. Raises ScriptError unless exactly one folder of lib/ has it."""
    folders = [folder for folder in _library_folders() if folder.joinpath(f"{name}.lua").is_file()]
    if len(folders) != 1:
        raise ScriptError(f"the library {name!r} must be in one folder of lib/, but it is in {len(folders)}")
    return f"lib/{folders[0].name}/{name}.lua"


def _library_folders() -> list[Traversable]:
    return [entry for entry in files("shared").joinpath("lua", "lib").iterdir() if entry.is_dir()]


def _check_answers(header: Header, body: str) -> None:
    written = set(re.findall(r"return \{ ?'(\w+)'", body))
    if written != header.answers:
        declared = sorted(header.answers)
        raise ScriptError(f"{header.name}: the header declares {declared}, but the body returns {sorted(written)}")


def _check_locals(header: Header, source: str) -> None:
    """Raise ScriptError if a name is defined twice: a second `local` would silently hide an argument or a function."""
    seen: set[str] = set()
    for match in re.finditer(r"^local (?:function )?([\w, ]+)", source, re.MULTILINE):
        for name in match[1].replace(" ", "").split(","):
            if name in seen:
                raise ScriptError(f"{header.name}: the name {name!r} is defined twice")
            seen.add(name)
