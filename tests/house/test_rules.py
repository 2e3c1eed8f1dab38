"""Tests the repository's rules that a machine can check: sizes, first lines, reasons beside exceptions."""

import ast
import os
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
MAIN_PACKAGES = ("shared", "web", "workers")
LONGEST_FILE, LONGEST_FUNCTION, MOST_MODULES = 400, 60, 25
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
#: Files that may be longer, each with its limit in lines and a reason.
LONG_FILES: dict[str, dict[str, int | str]] = PROJECT["tool"]["penstock"]["long-files"]


def files(
    *suffixes: str, folders: tuple[str, ...] = (*MAIN_PACKAGES, "tests", "bench", "tools", "examples")
) -> list[Path]:
    """Return every file of the repository with one of these suffixes."""
    return sorted(
        path
        for folder in folders
        for path in (ROOT / folder).rglob("*")
        if path.suffix in suffixes and "__pycache__" not in path.parts and path.is_file()
    )


def named(path: Path) -> str:
    return str(path.relative_to(ROOT))


PYTHON = files(".py")
LUA = files(".lua")


def text_of(path: Path) -> str:
    return path.read_text(encoding="utf-8")


def test_a_file_has_at_most_four_hundred_lines():
    lengths = {named(path): len(text_of(path).splitlines()) for path in PYTHON + LUA}
    limits = {name: int(exception["lines"]) for name, exception in LONG_FILES.items()}
    assert {name: length for name, length in lengths.items() if length > limits.get(name, LONGEST_FILE)} == {}


def test_every_file_that_may_be_longer_is_still_longer_and_has_a_reason():
    lengths = {named(path): len(text_of(path).splitlines()) for path in PYTHON + LUA}
    assert [name for name in LONG_FILES if lengths.get(name, 0) <= LONGEST_FILE] == []
    assert all(len(str(exception["reason"]).split()) > 3 for exception in LONG_FILES.values())


def test_routes_and_the_gate_do_not_call_the_store():
    """The import contract cannot see a call through the context that every route has."""
    modules = ("web/routes/", "web/gate/", "web/batches/routes", "web/batches/file_routes", "web/retrieval/routes")
    callers = [path for path in PYTHON if named(path).startswith(modules)]
    assert callers
    assert [
        named(path) for path in callers if ".store." in re.sub(r"^.*import .*$", "", text_of(path), flags=re.MULTILINE)
    ] == []


def test_a_package_has_at_most_twenty_five_modules():
    packages = {path.parent for path in PYTHON if named(path).startswith(MAIN_PACKAGES)}
    sizes = {named(folder): len([p for p in folder.glob("*.py") if p.name != "__init__.py"]) for folder in packages}
    assert {name: size for name, size in sizes.items() if size > MOST_MODULES} == {}


def functions(path: Path) -> Iterator[tuple[str, int]]:
    for node in ast.walk(ast.parse(text_of(path))):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            yield node.name, (node.end_lineno or node.lineno) - node.lineno + 1


def test_a_function_has_at_most_sixty_lines():
    long = {
        f"{named(path)}: {name}": length
        for path in PYTHON
        for name, length in functions(path)
        if length > LONGEST_FUNCTION
    }
    assert long == {}


def test_a_python_file_begins_with_a_one_line_sentence():
    first_lines = {
        named(path): (ast.get_docstring(ast.parse(text_of(path))) or "").partition("\n")[0]
        for path in PYTHON
        if text_of(path).strip() or path.name != "__init__.py"
    }
    assert {name: line for name, line in first_lines.items() if not line.endswith((".", "?"))} == {}


_EXCEPTION = re.compile(r"#\s*(?:noqa|type:\s*ignore)(?::\s*|\[)(?P<codes>[\w, -]+?)\]?(?P<reason>\s+[-#]\s+\w.*)?$")


def unexplained(path: Path) -> Iterator[str]:
    """Yield the exceptions to a rule for which neither their own nor an earlier line of the file gives the reason."""
    explained: set[str] = set()
    for number, line in enumerate(text_of(path).splitlines(), 1):
        found = _EXCEPTION.search(line)
        if found is None:
            continue
        codes = set(re.split(r"[,\s]+", found["codes"].strip()))
        if found["reason"]:
            explained |= codes
        elif not codes <= explained:
            yield f"{named(path)}:{number}: {line.strip()}"


def test_every_exception_to_a_rule_has_a_reason():
    offences = [line for path in PYTHON if path != Path(__file__) for line in unexplained(path)]
    # mypy checks the main packages only.
    assert [line for line in offences if "noqa" in line or line.startswith(MAIN_PACKAGES)] == []


def test_no_comment_disables_all_rules_at_once():
    blanket = re.compile(r"#\s*noqa(?!:)|#\s*type:\s*ignore(?!\[)")
    assert [named(path) for path in PYTHON if path != Path(__file__) and blanket.search(text_of(path))] == []


def test_no_file_contains_a_note_of_unfinished_work():
    words = re.compile(r"\b(TODO|FIXME|XXX|HACK)\b")
    assert [named(path) for path in PYTHON + LUA if path != Path(__file__) and words.search(text_of(path))] == []


def test_locked_requirements_name_no_host_and_hash_every_package():
    paths = files(".txt", folders=("requirements",))
    assert len(paths) > 1
    for path in paths:
        text = path.read_text(encoding="utf-8")
        assert "://" not in text, path
        pins = re.findall(r"^[a-zA-Z0-9][^\n]*==[^\n]*\\\n    --hash=sha256:", text, re.MULTILINE)
        assert len(pins) == len(re.findall(r"^[a-zA-Z0-9]", text, re.MULTILINE)), path


def test_every_dependency_is_locked():
    lists = [
        PROJECT["project"]["dependencies"],
        *PROJECT["project"]["optional-dependencies"].values(),
        *PROJECT["dependency-groups"].values(),
    ]
    wanted = {re.split(r"[<>=;\[ ]", line)[0].lower().replace("_", "-") for names in lists for line in names}
    locked = {
        name
        for path in files(".txt", folders=("requirements",))
        for name in re.findall(r"^([a-z0-9.-]+)==", text_of(path), re.MULTILINE)
    }
    assert wanted - locked == set(), "run `make lock`"


def test_the_ci_script_is_executable():
    assert os.access(ROOT / ".ci" / "run", os.X_OK)


def test_no_two_test_files_have_the_same_name() -> None:
    """The folders of tests are not packages, so pytest could not import both files in one process."""
    names = [path.name for path in PYTHON if path.name.startswith("test_")]
    assert sorted(names) == sorted(set(names))
