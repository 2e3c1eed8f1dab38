"""Tests of filters over metadata: what is accepted, what is refused by name, and what PostgreSQL makes of them."""

import json
import math
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shared.retrieval.errors import InvalidFilter
from shared.retrieval.filters import Combination, Comparison, Filter, filter_json, parse_filter, to_sql
from tests.support.examples import examples

EQ = {"type": "eq", "key": "team", "value": "red"}


def nested(depth: int) -> dict[str, Any]:
    return EQ if depth == 0 else {"type": "and", "filters": [nested(depth - 1)]}


@pytest.mark.parametrize(
    ("value", "field", "shown"),
    [
        ("eq", "filter", "'eq'"),
        ({}, "filter.type", "None"),
        ({"type": "like", "key": "a", "value": "b"}, "filter.type", "'like'"),
        ({"type": ["eq"], "key": "a", "value": "b"}, "filter.type", "['eq']"),
        ({"type": "eq", "key": "a"}, "filter.value", "None"),
        ({"type": "eq", "key": "a", "value": "b", "sql": "1"}, "filter.sql", "'1'"),
        (EQ | {"key": 7}, "filter.key", "7"),
        (EQ | {"key": ""}, "filter.key", "''"),
        (EQ | {"key": "k" * 65}, "filter.key", "'kkk"),
        (EQ | {"key": "a\0b"}, "filter.key", "'a\\x00b'"),
        (EQ | {"value": None}, "filter.value", "None"),
        (EQ | {"value": {"a": 1}}, "filter.value", "{'a': 1}"),
        (EQ | {"value": ["red"]}, "filter.value", "['red']"),
        (EQ | {"value": math.nan}, "filter.value", "nan"),
        (EQ | {"value": 10**400}, "filter.value", "'a large integer'"),
        (EQ | {"value": "\ud800"}, "filter.value", "'\\ud800'"),
        (EQ | {"value": "v" * 513}, "filter.value", "'vvv"),
        ({"type": "gt", "key": "a", "value": True}, "filter.value", "True"),
        ({"type": "in", "key": "a", "value": "b"}, "filter.value", "'b'"),
        ({"type": "in", "key": "a", "value": []}, "filter.value", "[]"),
        ({"type": "nin", "key": "a", "value": ["b", None]}, "filter.value[1]", "None"),
        ({"type": "in", "key": "a", "value": ["b"] * 101}, "filter.value", "['b'"),
        ({"type": "or", "filters": []}, "filter.filters", "[]"),
        ({"type": "or", "filters": [EQ, {"type": "no"}]}, "filter.filters[1].type", "'no'"),
        ({"type": "and", "filters": [EQ] * 33}, "filter.filters", "[{"),
        (nested(5), "filter.filters[0].filters[0].filters[0].filters[0]", "'and'"),
        ({"type": "and", "filters": [{"type": "or", "filters": [EQ] * 20}] * 2}, "filter", "'40 comparisons'"),
    ],
)
def test_a_wrong_filter_is_refused_with_the_part_that_is_wrong_and_its_value(value, field, shown):
    with pytest.raises(InvalidFilter) as refused:
        parse_filter(value)
    assert refused.value.field == field
    assert str(refused.value).startswith(f"{field}={shown}")
    assert len(str(refused.value)) < 300


def test_a_filter_of_openais_shape_is_accepted_and_equal_filters_have_one_text():
    parsed = parse_filter({"type": "and", "filters": [EQ, {"value": [1, "x", True], "key": "n", "type": "in"}]})
    assert parsed == Combination("and", (Comparison("eq", "team", "red"), Comparison("in", "n", (1.0, "x", True))))
    assert filter_json(parsed) == filter_json(parse_filter(json.loads(filter_json(parsed))))
    assert filter_json(None) == "null"


def test_no_part_of_a_filter_is_in_the_text_of_the_condition():
    hostile = "'); DROP TABLE chunks; --%s{}"
    sql, values = to_sql(parse_filter({"type": "or", "filters": [EQ | {"key": hostile}, EQ | {"value": hostile}]}))
    assert "DROP" not in sql
    assert sql.count("%s") == len(values)


# --- what PostgreSQL makes of them ------------------------------------------------------------------

KEYS = st.sampled_from(["year", "team", "draft", "tags", "'; --", "%s"])
SCALARS = st.one_of(
    st.sampled_from(["red", "Red", "", "2026", "10", "9", "ä", "true"]),
    st.integers(-3, 3),
    st.sampled_from([0.5, 1e300, -0.0]),
    st.booleans(),
)
COMPARISONS = st.one_of(
    st.builds(
        lambda *a: dict(zip(("type", "key", "value"), a, strict=True)), st.sampled_from(["eq", "ne"]), KEYS, SCALARS
    ),
    st.builds(
        lambda *a: dict(zip(("type", "key", "value"), a, strict=True)),
        st.sampled_from(["gt", "gte", "lt", "lte"]),
        KEYS,
        SCALARS.filter(lambda value: not isinstance(value, bool)),
    ),
    st.builds(
        lambda *a: dict(zip(("type", "key", "value"), a, strict=True)),
        st.sampled_from(["in", "nin"]),
        KEYS,
        st.lists(SCALARS, min_size=1, max_size=3),
    ),
)
FILTERS = st.recursive(
    COMPARISONS,
    lambda inner: st.builds(
        lambda type_, filters: {"type": type_, "filters": filters},
        st.sampled_from(["and", "or"]),
        st.lists(inner, min_size=1, max_size=3),
    ),
    max_leaves=6,
)
METADATA = st.dictionaries(
    KEYS, st.one_of(SCALARS, st.lists(st.sampled_from(["red", "9", ""]), max_size=3)), max_size=4
)


def is_equal(one: object, other: object) -> bool:
    """Return whether two values are equal as JSON: True and 1 differ."""
    return isinstance(one, bool) == isinstance(other, bool) and one == other


def holds(filter_: Filter, metadata: dict[str, Any]) -> bool:
    """Return whether a filter holds, in plain Python."""
    if isinstance(filter_, Combination):
        return (all if filter_.type == "and" else any)(holds(part, metadata) for part in filter_.filters)
    value = metadata.get(filter_.key)
    if filter_.type in {"gt", "gte", "lt", "lte"}:
        kind = str if isinstance(filter_.value, str) else (int, float)
        if isinstance(value, bool) or not isinstance(value, kind):
            return False
        order = (value > filter_.value) - (value < filter_.value)
        return {"gt": order > 0, "gte": order >= 0, "lt": order < 0, "lte": order <= 0}[filter_.type]
    wanted = filter_.value if isinstance(filter_.value, tuple) else (filter_.value,)
    given_ = value if isinstance(value, list) else [value]
    found = any(is_equal(one, other) for one in given_ for other in wanted)
    return found == (filter_.type in {"eq", "in"})


@pytest.fixture(scope="module")
def connection(database_url: str) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(database_url, autocommit=True) as connection:
        yield connection


@settings(max_examples=examples(60))
@given(filter_=FILTERS, metadata=METADATA)
def test_a_condition_holds_for_the_metadata_for_which_its_filter_holds(connection, filter_, metadata):
    parsed = parse_filter(filter_)
    sql, values = to_sql(parsed)
    query = f"SELECT {sql} FROM (SELECT %s::jsonb AS metadata) d"
    row = connection.execute(query.encode(), [*values, json.dumps(metadata)]).fetchone()
    assert row == (holds(parsed, metadata),)
