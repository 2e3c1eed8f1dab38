"""A script is given what its body reaches of the libraries, and nothing else."""

import re

import pytest

from shared.store import lua_bundle
from shared.store.scripts import load, names

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


def _gather(body, rarely=()):
    return lua_bundle.gather(lua_bundle.cut(LIBRARY), body, rarely)


def test_what_the_body_reaches_comes_in_the_librarys_order_and_nothing_else_comes():
    text = _gather("return high(1)")
    assert [text.find(name) for name in ("KEPT", "function low", "function high")] == sorted(
        text.find(name) for name in ("KEPT", "function low", "function high")
    )
    assert "alone" not in text
    assert "seldom" not in text


def test_a_comment_of_the_body_reaches_nothing():
    assert "alone" not in _gather("-- It stands alone.\nreturn low(1)")


def test_a_statement_that_makes_no_local_is_there_for_what_it_does_and_always_comes():
    assert lua_bundle.gather(lua_bundle.cut("redis.call('PING')"), "return 1") == "redis.call('PING')"


def test_what_is_wanted_rarely_is_made_when_it_is_called(redis_client):
    body = "return { low(1), seldom(2) }"
    text = _gather(body, ["seldom"])
    outside, _, inside = text.partition("local function seldom(...)")
    assert "function low" in outside
    assert "function high" not in outside
    assert "  local function high" in inside
    assert "function low" not in inside
    assert redis_client.eval(f"{text}\n{body}", 0) == redis_client.eval(f"{_gather(body)}\n{body}", 0) == [2, 6]


@pytest.mark.parametrize("name", ["nothing", "KEPT"])
def test_a_rare_name_that_is_no_function_is_an_error(name):
    with pytest.raises(ValueError, match=name):
        _gather("return 1", [name])


def test_a_rare_function_that_the_body_never_calls_does_not_come():
    assert _gather("return low(1)", ["seldom"]).find("seldom") == -1


def unused(source):
    """Functions of a script that nothing outside of themselves names."""
    parts = lua_bundle.cut(source)
    functions = [part for part in parts if re.match(r"local function \w+\(", part.text)]
    return [
        made
        for part in functions
        for made in part.makes
        if not any(made in other.words for other in parts if other is not part)
    ]


def test_a_function_that_only_itself_a_comment_or_a_longer_name_names_is_unused():
    source = "local function a(n)\n  return a(n)\nend\n-- a\nlocal ab = b(1)\nlocal function c()\nend\nreturn c() + ab"
    assert unused(source) == ["a"]


@pytest.mark.parametrize("name", names())
def test_no_script_carries_a_function_that_it_never_names(name):
    assert unused(load(name).source) == []
