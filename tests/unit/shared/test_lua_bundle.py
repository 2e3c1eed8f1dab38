"""Tests that a script is bundled with the library functions that its body uses, and with nothing else."""

import re

import pytest

from shared.store import lua_bundle
from shared.store.scripts import load, names, read

LIBRARY = """-- lib: some functions.
local KEPT = { 1,
  2 }

local function low(x)
  return x + KEPT[1]
end
local function high(x)
  -- calls low
  return low(x) * 2
end
local function alone()
  return 0
end
local function seldom(x)
  return high(x) + alone()
end
"""


def _bundle(body, rarely=()):
    return lua_bundle.bundle(lua_bundle.split_statements(LIBRARY), body, rarely)


@pytest.mark.parametrize("call", ["read_fields", "peek_fields"])
def test_fields_whose_names_are_written_out_are_the_same_as_those_of_a_list(redis_client, call):
    redis_client.hset("h", mapping={"a": "1", "s|x, (y)": "2", "c": "3"})
    guard = re.sub(r"\bk_\w+", "'unused'", read("lib/base/guard.lua")[1])
    answer = "\nreturn { got.a, got.none == false, got['s|x, (y)'], got.c == nil }"
    listed = f"local names = {{ 'a', 'none', 's|x, (y)' }}\nlocal got = {call}('h', names)"
    written = f"local slug = 'x, (y)'\nlocal got = {call}('h', {{ 'a', 'none',\n  's|' .. slug }})"
    unrolled = lua_bundle.unroll_reads(written)
    assert call not in unrolled
    expected = [b"1", 1, b"2", 1]
    assert redis_client.eval(guard + listed + answer, 0) == redis_client.eval(guard + unrolled + answer, 0) == expected


def test_only_statements_that_the_body_reaches_are_bundled_in_the_library_s_order():
    text = _bundle("return high(1)")
    assert [text.find(name) for name in ("KEPT", "function low", "function high")] == sorted(
        text.find(name) for name in ("KEPT", "function low", "function high")
    )
    assert "alone" not in text
    assert "seldom" not in text


def test_a_name_in_a_comment_of_the_body_is_not_bundled():
    assert "alone" not in _bundle("-- It stands alone.\nreturn low(1)")


def test_a_statement_that_defines_no_local_is_always_bundled():
    assert lua_bundle.bundle(lua_bundle.split_statements("redis.call('PING')"), "return 1") == "redis.call('PING')"


def test_a_rarely_used_function_is_created_only_when_it_is_called(redis_client):
    body = "return { low(1), seldom(2) }"
    text = _bundle(body, ["seldom"])
    outside, _, inside = text.partition("local function seldom(...)")
    assert "function low" in outside
    assert "function high" not in outside
    assert "  local function high" in inside
    assert "function low" not in inside
    assert redis_client.eval(f"{text}\n{body}", 0) == redis_client.eval(f"{_bundle(body)}\n{body}", 0) == [2, 6]


@pytest.mark.parametrize("name", ["nothing", "KEPT"])
def test_a_rare_name_that_is_not_a_function_is_an_error(name):
    with pytest.raises(ValueError, match=name):
        _bundle("return 1", [name])


def test_a_rare_function_that_the_body_never_calls_is_not_bundled():
    assert _bundle("return low(1)", ["seldom"]).find("seldom") == -1


def unused(source):
    """Return the functions of a script that nothing outside the function itself names."""
    parts = lua_bundle.split_statements(source)
    functions = [part for part in parts if re.match(r"local function \w+\(", part.text)]
    return [
        name
        for part in functions
        for name in part.defines
        if not any(name in other.words for other in parts if other is not part)
    ]


def test_a_function_that_is_named_only_by_itself_a_comment_or_part_of_a_longer_name_is_unused():
    source = "local function a(n)\n  return a(n)\nend\n-- a\nlocal ab = b(1)\nlocal function c()\nend\nreturn c() + ab"
    assert unused(source) == ["a"]


@pytest.mark.parametrize("name", names())
def test_no_script_contains_a_function_that_it_does_not_use(name):
    assert unused(load(name).source) == []


def test_numeric_constants_are_replaced_by_their_values():
    source = (
        "local MANY, LESS = 64, -5\nlocal NAMES = { 1 }\nlocal few = 3\nreturn MANY - LESS + few + #NAMES + MANY_MORE\n"
    )
    expected = "local NAMES = { 1 }\nlocal few = 3\nreturn 64 - (-5) + few + #NAMES + MANY_MORE\n"
    assert lua_bundle.inline_constants(source) == expected


def test_a_constant_that_is_computed_or_belongs_to_a_function_keeps_its_name():
    source = "local HALF = 1 / 2\nlocal function f()\n  local ONE = 1\n  return ONE + HALF\nend\nreturn f()\n"
    assert lua_bundle.inline_constants(source) == source
