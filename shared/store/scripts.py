"""Loads shared/lua/*.lua; a script's header is its signature, and every call and answer is checked by it.

A header has these sections (shared/lua/README.md): KEYS (names of shared/store/keys.py), ARGV (name, type,
meaning), ANSWERS (the closed set of first words), KEEPS (invariants of docs/states.md), USES (lib files),
RARELY (functions that are made when they are called). From it a prelude is made: `k_<name>` holds a key or
its prefix, each argument is a local of its name; of the libraries, what the body reaches (shared/store/lua_bundle.py).
"""

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any, Literal, get_args

import redis
from redis.exceptions import NoScriptError, ResponseError

from shared.errors import ScriptError
from shared.store import lua_bundle
from shared.store.keys import BY_NAME

ArgType = Literal["text", "int", "rest"]
Value = str | bytes | int
#: The arguments of one call by name.
Call = dict[str, Value | Sequence[Value]]

#: Lua's numbers are doubles: beyond this neighbours fall together.
_MAX_INT = 2**53

_SECTION = re.compile(r"-- (KEYS|ARGV|ANSWERS|KEEPS|USES|RARELY)\b ?(.*)\Z")
_ARG = re.compile(r"(\w+) (\w+) · (.+)\Z")


@dataclass(frozen=True)
class Arg:
    """One ARGV slot (`rest`: all remaining ones)."""

    name: str
    type: ArgType


@dataclass(frozen=True)
class Header:
    """What a Lua file says of itself."""

    name: str
    summary: str
    keys: tuple[str, ...]
    args: tuple[Arg, ...]
    answers: frozenset[str]
    keeps: tuple[int, ...]
    uses: tuple[str, ...]
    rarely: tuple[str, ...]


@dataclass(frozen=True)
class Script:
    """A script ready to be called."""

    header: Header
    source: str
    sha: str

    def argv(self, **given: Value | Sequence[Value]) -> list[Value]:
        """The call's arguments in their order. Raises ScriptError when names or types do not fit the header."""
        names = [arg.name for arg in self.header.args]
        if set(given) != set(names):
            raise ScriptError(f"{self.header.name}: takes {names}, was given {sorted(given)}")
        out: list[Value] = []
        for arg in self.header.args:
            value = given[arg.name]
            if arg.type == "rest":
                if isinstance(value, str | bytes | int):
                    raise ScriptError(f"{self.header.name}: {arg.name} takes a sequence, not {value!r}")
                out.extend(value)
            elif arg.type == "int" and (isinstance(value, bool) or not isinstance(value, int)):
                raise ScriptError(f"{self.header.name}: {arg.name} takes an int, not {value!r}")
            elif isinstance(value, int) and abs(value) > _MAX_INT:
                raise ScriptError(f"{self.header.name}: {arg.name} takes an int within 2^53, not {value!r}")
            elif arg.type == "text" and not isinstance(value, str | bytes):
                raise ScriptError(f"{self.header.name}: {arg.name} takes text, not {value!r}")
            else:
                out.append(value)  # type: ignore[arg-type]  # sequences went the other way
        return out

    def call(self, client: redis.Redis, **given: Value | Sequence[Value]) -> tuple[str, list[Any]]:
        """Run the script: the answer's word and what follows it. Raises ScriptError on an undeclared answer."""
        argv = self.argv(**given)
        try:
            raw: Any = client.evalsha(self.sha, 0, *argv)
        except NoScriptError:
            raw = client.eval(self.source, 0, *argv)
        return self.answer(raw)

    def call_many(self, client: redis.Redis, calls: Sequence[Call]) -> list[tuple[str, list[Any]] | ResponseError]:
        """Run the script for each call, in order, in one round trip; what the server refused stands as its error."""
        argvs = [self.argv(**given) for given in calls]
        pipe = client.pipeline(transaction=False)
        for argv in argvs:
            pipe.evalsha(self.sha, 0, *argv)
        answers: list[tuple[str, list[Any]] | ResponseError] = []
        for argv, replied in zip(argvs, pipe.execute(raise_on_error=False), strict=True):
            raw = replied
            if isinstance(raw, NoScriptError):
                try:
                    raw = client.eval(self.source, 0, *argv)
                except ResponseError as refused:
                    raw = refused
            if isinstance(raw, Exception) and not isinstance(raw, ResponseError):
                raise raw
            answers.append(raw if isinstance(raw, ResponseError) else self.answer(raw))
        return answers

    def answer(self, raw: Any) -> tuple[str, list[Any]]:
        """Check a raw reply against the header: its word and what follows it."""
        word = raw[0].decode() if isinstance(raw, list) and raw and isinstance(raw[0], bytes) else repr(raw)
        if word not in self.header.answers:
            raise ScriptError(f"{self.header.name}: answered {word!r}, declares {sorted(self.header.answers)}")
        return word, raw[1:]


@cache
def load(name: str) -> Script:
    """The script of shared/lua/<name>.lua with its libraries. Raises ScriptError when header and body differ."""
    header, body = read(f"{name}.lua")
    libs = _libraries(header.uses)
    try:
        parts = lua_bundle.gather([part for _, text in libs for part in lua_bundle.cut(text)], body, header.rarely)
    except ValueError as wrong:
        raise ScriptError(f"{name}: {wrong}") from None
    used = set(re.findall(r"\bk_(\w+)\b", parts + body))
    lines = [f"local k_{key} = '{BY_NAME[key].prefix}'" for key in sorted(used)]
    for index, arg in enumerate(header.args, 1):
        slot = {"text": f"ARGV[{index}]", "int": f"tonumber(ARGV[{index}])", "rest": str(index)}[arg.type]
        lines.append(f"local {arg.name} = {slot}")
    source = "\n".join([*lines, parts, body])
    _check_answers(header, body)
    _check_locals(header, source)
    return Script(header, source, hashlib.sha1(source.encode(), usedforsecurity=False).hexdigest())


def names() -> list[str]:
    """The names of all scripts."""
    return sorted(entry.name[:-4] for entry in files("shared").joinpath("lua").iterdir() if entry.name.endswith(".lua"))


def read(path: str) -> tuple[Header, str]:
    """Header and body of a file below shared/lua. Raises ScriptError when the header does not parse."""
    text = files("shared").joinpath("lua").joinpath(path).read_text("utf-8")
    header = parse(path.removesuffix(".lua"), text)
    used = set(re.findall(r"\bk_(\w+)\b", text))
    if used != set(header.keys):
        raise ScriptError(f"{path}: header names keys {sorted(header.keys)}, body uses {sorted(used)}")
    return header, text


def parse(name: str, text: str) -> Header:
    """Parse a file's leading comment. Raises ScriptError, quoting the line that does not fit."""
    found: dict[str, list[str]] = {"KEYS": [], "ARGV": [], "ANSWERS": [], "KEEPS": [], "USES": [], "RARELY": []}
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
    keys = tuple(" ".join(found["KEYS"]).split())
    unknown = [key for key in keys if key not in BY_NAME]
    if unknown:
        raise ScriptError(f"{name}: no such keys in shared/store/keys.py: {unknown}")
    return Header(
        name=name,
        summary=lines[0].split(": ", 1)[1],
        keys=keys,
        args=tuple(_parse_arg(name, line) for line in found["ARGV"] if line),
        answers=frozenset(" ".join(found["ANSWERS"][:1]).split()),
        keeps=tuple(int(number) for number in " ".join(found["KEEPS"]).split()),
        uses=tuple(" ".join(found["USES"]).split()),
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
        raise ScriptError(f"{name}: not 'name text|int|rest · meaning': {line!r}")
    return Arg(match[1], match[2])  # type: ignore[arg-type]  # checked the line before


def _libraries(uses: Sequence[str]) -> list[tuple[Header, str]]:
    """The libraries in an order in which each stands after what it uses, each once."""
    ordered: dict[str, tuple[Header, str]] = {}

    def visit(name: str) -> None:
        if name not in ordered:
            header, body = read(f"lib/{name}.lua")
            for other in header.uses:
                visit(other)
            ordered[name] = (header, body)

    for name in uses:
        visit(name)
    return list(ordered.values())


def _check_answers(header: Header, body: str) -> None:
    written = set(re.findall(r"return \{ ?'(\w+)'", body))
    if written != header.answers:
        raise ScriptError(f"{header.name}: header declares {sorted(header.answers)}, body answers {sorted(written)}")


def _check_locals(header: Header, source: str) -> None:
    """No file may take another's name: a second `local` would hide an argument or a helper unseen."""
    seen: set[str] = set()
    for match in re.finditer(r"^local (?:function )?([\w, ]+)", source, re.MULTILINE):
        for name in match[1].replace(" ", "").split(","):
            if name in seen:
                raise ScriptError(f"{header.name}: the name {name!r} is taken twice")
            seen.add(name)
