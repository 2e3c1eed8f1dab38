"""Tests that the answers of a random model fit schemas of every shape and with every kind of unusual name."""

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, given, settings

from tests.support.driven import Driven
from tests.support.fits_schema import assert_fits

#: Names and values that JSON escapes with backslashes, or that could be mistaken for one another.
NAMES = ["a", "a-b", "a b", "a0", 'q"x', "back\\slash", "two\nlines", "é水", "root", "string", "integer", "kv", "own"]
VALUES = ['x"y', "\\", "\n", "é", "\u2028", 1, -2.5, None, True, [1, {"a": "\t"}]]
PATTERNS = [r"^[a-c]{1,3}$", r"^.{0,4}$", r"^(a|b\d)+$", r'^"x\\?$', r"^[^a-z]{1,2}$", r"^\w+@\w+$", r"^$", r"^\s?x$"]
REFS = [{"$ref": f"#/$defs/{name}"} for name in ("a", "string", "tilde~0here")]

leaf = st.one_of(
    st.sampled_from([{"type": "boolean"}, {"type": "null"}, {"type": "integer"}, {"type": "string", "maxLength": 4}]),
    st.sampled_from([{"type": "string", "format": form} for form in ("date", "time", "date-time", "uuid")]),
    st.builds(lambda pattern: {"type": "string", "pattern": pattern}, st.sampled_from(PATTERNS)),
    st.builds(lambda values: {"enum": values}, st.lists(st.sampled_from(VALUES), min_size=1, max_size=3)),
    st.builds(lambda value: {"const": value}, st.sampled_from(VALUES)),
    st.just({"type": ["integer", "null"], "minimum": -3, "maximum": 11}),
)


def _object(parts, required):
    return {"type": "object", "properties": parts, "required": sorted(set(parts) & required)}


def _types(kinds, part):
    return {"type": kinds, "properties": {"a": part}, "items": part, "maxItems": 2, "maxLength": 3}


def nested(part):
    """Schemas that contain schemas drawn from `part`."""
    names = st.sampled_from(NAMES)
    kinds = st.lists(st.sampled_from(["object", "array", "string", "null"]), min_size=2, max_size=2, unique=True)
    return st.one_of(
        st.builds(_object, st.dictionaries(names, part, min_size=1, max_size=4), st.sets(names)),
        st.builds(lambda items: {"type": "array", "items": items, "minItems": 1, "maxItems": 2}, part),
        st.builds(lambda one, two: {"type": "array", "prefixItems": [one, two]}, part, part),
        st.builds(lambda choices: {"anyOf": choices}, st.lists(part, min_size=1, max_size=3)),
        st.builds(_types, kinds, part),
        st.builds(lambda one, two: {"allOf": [{"properties": {"a": one}}, {"properties": {"b": two}}]}, part, part),
        st.builds(lambda one: {"allOf": [one], "description": "alone"}, part),
    )


schemas = st.builds(
    lambda top, one, two, three: {"anyOf": [top], "$defs": {"a": one, "string": two, "tilde~here": three}},
    st.recursive(st.one_of(leaf, st.sampled_from(REFS)), nested, max_leaves=6),
    st.recursive(st.one_of(leaf, st.sampled_from(REFS[1:])), nested, max_leaves=3),
    leaf,
    leaf,
)


@pytest.mark.parametrize("backend", [("split", 16384)], indirect=True, ids=["split"])
@given(schema=schemas)
# The same schemas each time: one that is too slow to be read fails its job, as it should, and would fail this too.
@settings(max_examples=25, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_every_answer_fits(backend, schema):
    for ended in Driven(backend).answers(schema, max_tokens=200, temperature=2.0):
        assert ended.outcome == "succeeded", ended
        if ended.finish_reason == "stop":
            assert_fits(schema, ended.text)
