"""Tests that a script is bundled with the library functions that its body uses, and with nothing else."""

import re
from collections import Counter

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


def _bundle(body, **sections):
    return lua_bundle.bundle(lua_bundle.split_statements(LIBRARY), body, **sections)


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
    places = [text.find(f"\n{name} =") for name in ("KEPT", "low", "high")]
    assert -1 not in places
    assert places == sorted(places)
    assert "alone" not in text
    assert "seldom" not in text


def test_a_name_in_a_comment_of_the_body_is_not_bundled():
    assert "alone =" not in _bundle("-- It stands alone.\nreturn low(1)")


def test_a_statement_that_defines_no_local_is_always_bundled():
    statements = lua_bundle.split_statements("redis.call('PING')")
    assert lua_bundle.bundle(statements, "return 1") == "redis.call('PING')\nreturn 1"


@pytest.mark.parametrize("section", ["later", "rarely"])
def test_a_rarely_used_function_is_created_only_when_it_is_called(redis_client, section):
    body = "local before = rawget(lib, 'high')\nreturn { low(1), before and 1 or 0, seldom(2), lib.high and 1 or 0 }"
    assert redis_client.eval(_bundle(body, **{section: ["seldom"]}), 0) == [2, 0, 6, 1]
    assert redis_client.eval(_bundle(body), 0) == [2, 1, 6, 1]


def test_functions_of_one_section_are_created_before_those_of_the_other(redis_client):
    body = "alone()\nlocal first = rawget(lib, 'seldom')\nreturn { first and 1 or 0, seldom(2) }"
    assert redis_client.eval(_bundle(body, later=["alone"], rarely=["seldom"]), 0) == [0, 6]


def test_a_function_with_the_name_of_a_parameter_is_called_where_it_is_meant(redis_client):
    body = "local function twice(low)\n  return 2 * low\nend\nreturn { twice(3), low(3), high(3) }"
    assert redis_client.eval(_bundle(body), 0) == redis_client.eval(_bundle(body, rarely=["low"]), 0) == [6, 4, 8]


def test_a_name_in_a_text_and_the_key_of_a_table_are_not_those_of_a_function(redis_client):
    body = "local own = { low = 'low .. high', other = { 1,\n  high = low(1) } }\nreturn { own.low, own.other.high }"
    assert redis_client.eval(_bundle(body), 0) == [b"low .. high", 2]


def test_a_variable_that_a_statement_changes_has_its_value_after_it(redis_client):
    library = (
        "local count\nlocal function add()\n  count = (count or 0) + 1\nend\nadd()\nlocal first = count + 1\n"
        "local function get()\n  return first\nend\n"
    )
    statements = lua_bundle.split_statements(library)
    assert redis_client.eval(lua_bundle.bundle(statements, "return { get(), first, count }"), 0) == [2, 2, 1]


def test_a_name_of_the_body_that_a_library_has_is_an_error():
    with pytest.raises(ValueError, match="'low' is defined twice"):
        _bundle("local low = 1\nreturn high(low)")


@pytest.mark.parametrize("name", ["nothing", "KEPT"])
def test_a_rare_name_that_is_not_a_function_is_an_error(name):
    with pytest.raises(ValueError, match=name):
        _bundle("return 1", rarely=[name])


def test_a_rare_function_that_the_body_never_calls_is_not_bundled():
    assert _bundle("return low(1)", rarely=["seldom"]).find("seldom") == -1


def unused(source):
    """Return the library functions of a script that nothing but the function itself names."""
    bodies = dict(re.findall(r"^(?:lib\.)?(\w+) = (function\(.*?^end)", source, re.MULTILINE | re.DOTALL))
    rest = re.compile(r"\blib\.(\w+)\b(?! = function)")
    named = Counter(rest.findall(source))
    return [name for name, body in bodies.items() if named[name] <= rest.findall(body).count(name)]


def test_a_function_that_is_named_only_by_itself_is_unused():
    source = "lib = {\na = function(n)\n  return lib.a(n)\nend,\nb = function()\nend,\n}\nreturn lib.b() + lib.ab"
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
