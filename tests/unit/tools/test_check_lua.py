"""Tests the check of the Lua files' names with files that break its rules."""

import shutil

import pytest

from tools import check_lua
from tools.check_lua import problems_of_names, read_file

STATS = "-- stats: counts.\nlocal function count(name)\n  return name\nend\n"


@pytest.fixture
def problems(tmp_path, monkeypatch):
    """Returns a function that checks libraries and one script, given by their names and texts."""
    monkeypatch.setattr(check_lua, "LUA", tmp_path)
    (tmp_path / "lib" / "base").mkdir(parents=True)

    def check(script: str, **libraries: str) -> list[str]:
        for name, text in libraries.items():
            (tmp_path / "lib" / "base" / f"{name}.lua").write_text(text)
        (tmp_path / "sample.lua").write_text(script)
        found = [read_file(path) for path in sorted((tmp_path / "lib" / "base").iterdir())]
        return list(problems_of_names(found, [read_file(tmp_path / "sample.lua")]))

    return check


def test_a_name_with_its_file_is_right(problems):
    assert problems("-- sample: x.\n-- USES stats\nreturn 'a' .. stats.count('count')\n", stats=STATS) == []


@pytest.mark.parametrize(
    ("script", "expected"),
    [
        ("-- USES stats\ncount('a')\nstats.count('a')\n", "sample: count is a name of stats; write stats.count"),
        ("stats.count('a')\n", "sample: its header lacks USES stats"),
        ("-- USES clock\n-- USES stats\nreturn 1\n", "stats: no file uses count"),
        ("-- USES stats\nreturn count_of.stats\n", "sample: USES names stats, but no code of the file needs it"),
    ],
)
def test_a_script_that_breaks_a_rule_is_named(problems, script, expected):
    clock = "-- clock: x.\nlocal now_ms = 1\n"
    assert expected in problems(f"-- sample: x.\n{script}", stats=STATS, clock=clock)


def test_a_name_of_two_libraries_is_named(problems):
    text = "-- sample: x.\n-- USES stats\nstats.count('a')\n"
    assert "usage: count is a name of stats too" in problems(text, stats=STATS, usage=STATS.replace("stats:", "usage:"))


def test_a_local_with_the_name_of_another_files_function_is_no_use_of_it(problems):
    text = "-- sample: x.\n-- USES stats\nlocal function f(count)\n  return stats.count(count)\nend\n"
    assert problems(text, stats=STATS) == []


@pytest.mark.skipif(shutil.which("luacheck") is None, reason="luacheck is not installed")
def test_luacheck_names_what_a_script_uses_and_nothing_defines(monkeypatch):
    spoiled = "missing.name()\n" + check_lua.scripts.load("touch").source
    monkeypatch.setattr(check_lua.scripts, "names", lambda: ["touch"])
    monkeypatch.setattr(check_lua.scripts, "load", lambda _: type("Script", (), {"source": spoiled}))
    assert any("undefined variable 'missing'" in line for line in check_lua.problems_of_luacheck())
