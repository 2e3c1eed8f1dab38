"""Checks the Lua files below shared/lua: each name has one file, its callers name that file, and luacheck is content.

A function or a constant of a library is used in other files as `library.name`, except those of the two libraries that
nearly every script uses. luacheck checks each script as it is sent to the store, with its libraries.
"""

import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from shared.store import lua_bundle, scripts

LUA = Path(scripts.__file__).parents[1] / "lua"
#: Their names are used without the file's.
WITHOUT_PREFIX = frozenset({"clock", "guard"})
LONGEST_LINE = 120
#: Arguments of a script and libraries' own locals may have the names of outer ones.
_IGNORED = ("431",)
_GLOBALS = ("redis", "cjson", "cmsgpack", "struct", "bit", "KEYS", "ARGV")

_STRING_OR_COMMENT = re.compile(r"'(?:\\.|[^'\\])*'|--[^\n]*")
_NAME = re.compile(r"(?:(?<![\w.:])|(?<=\.\.))[A-Za-z_]\w*")
_WORD = re.compile(r"\w+")
_QUALIFIED = re.compile(r"(?:(?<![\w.:])|(?<=\.\.))([a-z]\w*)\.(\w+)")
#: The key of a value in a table.
_KEY = re.compile(r"(?<=[{,])\s*\w+ =(?!=)")
_LOCALS = re.compile(r"\b(?:local (?:function )?|for )([\w, ]+)")
_PARAMETERS = re.compile(r"\bfunction ?\w*\(([^)]*)\)")
_ARGUMENT = re.compile(r"^--   (\w+) (?:text|int|rest) ·", re.MULTILINE)


@dataclass(frozen=True)
class LuaFile:
    """A script or a library: the names that it defines, those that it declares anywhere, and those that it uses."""

    name: str
    uses: tuple[str, ...]
    defines: frozenset[str]
    declares: frozenset[str]
    names: frozenset[str]
    qualified: frozenset[tuple[str, str]]
    #: Whether the file does something by itself, besides defining names.
    acts: bool


def read_file(path: Path) -> LuaFile:
    """Return what the checks need of a file. Raises ScriptError if its header is invalid."""
    text = path.read_text("utf-8")
    code = _STRING_OR_COMMENT.sub("''", text)
    statements = lua_bundle.split_statements(text)
    uses = scripts.parse(path.stem, text).uses
    bare = _QUALIFIED.sub(lambda match: "" if match[1] in uses else match[0], _KEY.sub("", code))
    lists = [*_LOCALS.findall(code), *_PARAMETERS.findall(code)]
    return LuaFile(
        path.stem,
        uses,
        frozenset(name for statement in statements for name in statement.defines),
        frozenset([*_WORD.findall(" ".join(lists)), *_ARGUMENT.findall(text)]),
        frozenset(_NAME.findall(bare)),
        frozenset(_QUALIFIED.findall(code)),
        any(not statement.defines for statement in statements),
    )


def problems_of_names(libraries: list[LuaFile], others: list[LuaFile]) -> Iterator[str]:
    """Yield a sentence for each name that two libraries define, that no file uses, or that is used without its file."""
    owners: dict[str, str] = {}
    for library in libraries:
        for name in sorted(library.defines):
            if name in owners:
                yield f"{library.name}: {name} is a name of {owners[name]} too"
            owners[name] = library.name
    files = [*libraries, *others]
    named = {pair for file in files for pair in file.qualified}
    for library in libraries:
        for name in sorted(library.defines):
            is_used = (library.name, name) in named or library.name in WITHOUT_PREFIX or _is_used_inside(name, library)
            if not is_used:
                yield f"{library.name}: no file uses {name}"
    needed = WITHOUT_PREFIX | {library.name for library in libraries if library.acts}
    for file in files:
        yield from _problems_of_uses(file, owners, needed)


def _problems_of_uses(file: LuaFile, owners: dict[str, str], needed: frozenset[str]) -> Iterator[str]:
    """Yield a sentence for each name that the file uses without its file, and for each error in USES.

    The libraries in `needed` may be in USES although the file names nothing of them.
    """
    for name in sorted(file.names - file.declares):
        owner = owners.get(name, file.name)
        if owner != file.name and owner not in WITHOUT_PREFIX:
            yield f"{file.name}: {name} is a name of {owner}; write {owner}.{name}"
    used = {library for library, name in file.qualified if owners.get(name) == library}
    for library in sorted(used - {*file.uses, file.name}):
        yield f"{file.name}: its header lacks USES {library}"
    for library in file.uses:
        if library not in used | needed:
            yield f"{file.name}: USES names {library}, but no code of the file needs it"


def _is_used_inside(name: str, library: LuaFile) -> bool:
    """Whether another statement of the library uses the name."""
    path = next(LUA.glob(f"lib/*/{library.name}.lua"))
    statements = lua_bundle.split_statements(path.read_text("utf-8"))
    return any(name in statement.words for statement in statements if name not in statement.defines)


def problems_of_lines() -> Iterator[str]:
    """Yield a sentence for each line that is too long."""
    for path in sorted(LUA.rglob("*.lua")):
        for number, line in enumerate(path.read_text("utf-8").splitlines(), 1):
            if len(line) > LONGEST_LINE:
                yield f"{path.relative_to(LUA)}:{number}: has {len(line)} characters, the most is {LONGEST_LINE}"


def problems_of_luacheck() -> Iterator[str]:
    """Yield the lines in which luacheck complains about a script, or none if it is not installed."""
    program = shutil.which("luacheck")
    if program is None:
        sys.stderr.write("luacheck is not installed (Debian: lua-check), so the Lua scripts are not checked with it\n")
        return
    with tempfile.TemporaryDirectory() as folder:
        for name in scripts.names():
            (Path(folder) / f"{name}.lua").write_text(scripts.load(name).source, "utf-8")
        options = ["--std", "lua51", "--no-color", "--codes", "-q", "--no-max-line-length"]
        command = [program, folder, *options, "--globals", *_GLOBALS, "--ignore", *_IGNORED]
        checked = subprocess.run(command, capture_output=True, text=True, check=False)
        if checked.returncode:
            yield from (checked.stdout + checked.stderr).replace(f"{folder}/", "").strip().splitlines()


def main() -> int:
    """Print every problem; return 1 if there is one."""
    libraries = [read_file(path) for path in sorted(LUA.glob("lib/*/*.lua"))]
    others = [read_file(path) for path in sorted(LUA.glob("*.lua"))]
    problems = [*problems_of_names(libraries, others), *problems_of_lines(), *problems_of_luacheck()]
    sys.stdout.writelines(f"{problem}\n" for problem in problems)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
